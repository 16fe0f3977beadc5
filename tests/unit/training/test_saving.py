"""Checkpoints that the disk of a run refuses, in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.data.corpora import small_tokenizer
from support.faults.disk import full_disk

from dstransformer.batching import Position
from dstransformer.checkpoints.format import Snapshot, TrainState
from dstransformer.checkpoints.pieces import Piece
from dstransformer.checkpoints.retention import CheckpointFolder
from dstransformer.checkpoints.saver import Saver
from dstransformer.config import load_config
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.errors import StorageError
from dstransformer.tracking import Tracker
from dstransformer.training.saving import LAST_TRIES, Insistence, Saves


class Record(Tracker):
    """Remembers what was not saved."""

    def __init__(self) -> None:
        self.unsaved: list[tuple[int, str]] = []

    def log_unsaved(self, step: int, what: str, reason: str) -> None:
        assert reason
        self.unsaved.append((step, what))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield join_world(read_processes(os.environ))
    leave_world()


def take_snapshot() -> Snapshot:
    return Snapshot([Piece("w", 0, {"weight": torch.ones(2)})], {})


def state(step: int) -> TrainState:
    return TrainState(step, Position(0, step), 1, 1, "fp32", "none")


def test_a_refused_checkpoint_is_due_again_and_was_in_vain_until_one_is_saved(world: World, tmp_path: Path) -> None:
    config, record = load_config("toy", ["checkpoint.retry_seconds=1e-9", "checkpoint.every_minutes=0"]), Record()
    folder = CheckpointFolder(tmp_path / "checkpoints")
    saver = Saver(folder, world, config, small_tokenizer(), {}, lambda _: None)
    saves = Saves(saver, config.checkpoint, world, record)
    assert not saves.is_due
    with full_disk():
        saves.begin(take_snapshot, state(1), None)
        saves.finish()
    assert record.unsaved == [(1, "checkpoint")]
    assert saves.is_due
    with pytest.raises(StorageError, match="File too large; make room"):
        saves.check_not_in_vain()
    saves.begin(take_snapshot, state(2), None)
    assert not saves.is_due
    saves.finish()
    saves.check_not_in_vain()
    assert [path.name for path in folder.folders()] == ["step-00000002"]
    with full_disk():
        saves.begin(take_snapshot, state(3), None)
        saves.finish()
    saves.check_not_in_vain()
    latest = folder.latest()
    assert latest is not None
    assert latest.state.step == 2


def test_the_end_of_a_run_tries_several_times_unless_it_is_stopped(world: World) -> None:
    record, tries = Record(), 0

    def attempt(refusals: int) -> str:
        nonlocal tries
        tries += 1
        if tries <= refusals:
            raise StorageError("cannot write it")
        return "done"

    insistence = Insistence(1e-9, 7, lambda: False, world, record)
    assert insistence.on("the final bundle", lambda: attempt(LAST_TRIES - 1)) == "done"
    assert record.unsaved == [(7, "the final bundle")] * (LAST_TRIES - 1)
    tries = 0
    with pytest.raises(StorageError, match="the final bundle could not be saved, in 5 tries: cannot write it"):
        insistence.on("the final bundle", lambda: attempt(LAST_TRIES))
    tries = 0
    stopped = Insistence(3600.0, 7, lambda: True, world, record)
    assert stopped.on("the final bundle", lambda: attempt(1)) is None
