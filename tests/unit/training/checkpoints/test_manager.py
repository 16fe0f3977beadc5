"""Checkpoints that the disk of a run refuses or that cannot be completed, in one process."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data.corpora import small_tokenizer
from support.faults.disk import full_disk

from dstransformer.config import load_config
from dstransformer.data.plan import Position
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.supervision.stop_signals import StopRequest, StopRequested
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.errors import StorageError
from dstransformer.evaluation import Score
from dstransformer.io.files import MAX_TRIES
from dstransformer.tracking.events import CheckpointSaved, Event, SaveFailed, Tracker
from dstransformer.training.checkpoints import checkpoint_folder
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import Snapshot, TrainState
from dstransformer.training.checkpoints.manager import CheckpointManager
from dstransformer.training.checkpoints.shards import Shard, write_shards


class Record(Tracker):
    """Remembers what was saved, and what was not."""

    def __init__(self) -> None:
        self.saved: list[CheckpointSaved] = []
        self.unsaved: list[tuple[int, str]] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            self.saved.append(event)
        if isinstance(event, SaveFailed):
            assert event.reason
            self.unsaved.append((event.step, event.what))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield join_world(read_processes(os.environ))
    leave_world()


def take_snapshot() -> Snapshot:
    return Snapshot([Shard("w", 0, {"weight": torch.ones(2)})], {})


def state(step: int) -> TrainState:
    return TrainState(step, Position(0, step), 1, 1, "fp32", "none")


def test_a_refused_checkpoint_is_due_again_and_was_in_vain_until_one_is_saved(world: World, tmp_path: Path) -> None:
    config, record = load_config("toy", ["checkpoint.retry_seconds=1e-9", "checkpoint.every_minutes=0"]), Record()
    folder = CheckpointFolder(tmp_path / "checkpoints")
    manager = CheckpointManager(folder, config, small_tokenizer(), {}, Session(world), record)
    assert not manager.is_due
    with full_disk():
        manager.begin(take_snapshot, state(1), None)
        manager.finish()
    assert record.unsaved == [(1, "checkpoint")]
    assert manager.is_due
    with pytest.raises(StorageError, match="ulimit -f"):
        manager.raise_if_nothing_saved()
    manager.begin(take_snapshot, state(2), None)
    assert not manager.is_due
    manager.finish()
    manager.raise_if_nothing_saved()
    assert [path.name for path in folder.folders()] == ["step-00000002"]
    with full_disk():
        manager.begin(take_snapshot, state(3), None)
        manager.finish()
    manager.raise_if_nothing_saved()
    latest = manager.latest()
    assert latest is not None
    assert latest.state.step == 2


def test_the_last_checkpoint_is_tried_several_times_unless_the_run_is_stopped(world: World, tmp_path: Path) -> None:
    config, record = load_config("toy", ["checkpoint.retry_seconds=1e-9"]), Record()
    stop = StopRequest()
    session = Session(world, stop)
    manager = CheckpointManager(
        CheckpointFolder(tmp_path / "a" / "checkpoints"), config, small_tokenizer(), {}, session, record
    )
    with pytest.raises(StorageError, match=r"last checkpoint .*5 tries"):
        manager.save_last(take_snapshot, state(7), None)
    assert record.unsaved == [(7, "the last checkpoint")] * MAX_TRIES
    (tmp_path / "a").mkdir()
    manager.save_last(take_snapshot, state(7), None)
    stop.received = "SIGTERM"
    folder = CheckpointFolder(tmp_path / "b" / "checkpoints")
    patient = load_config("toy", ["checkpoint.retry_seconds=3600"])
    stopped = CheckpointManager(folder, patient, small_tokenizer(), {}, session, record)
    with pytest.raises(StopRequested):
        stopped.save_last(take_snapshot, state(7), None)
    with pytest.raises(StorageError, match="cannot write"):
        stopped.raise_if_nothing_saved()


def test_a_full_disk_at_the_manifest_leaves_no_partial_checkpoint(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    folder, record = CheckpointFolder(tmp_path / "checkpoints"), Record()
    manager = CheckpointManager(folder, load_config("toy"), small_tokenizer(), {}, Session(world), record)
    manager.begin(take_snapshot, state(1), None)
    manager.finish()
    manager.begin(take_snapshot, state(2), None)
    manager._pending.part.result()  # type: ignore[union-attr]
    monkeypatch.setattr(checkpoint_folder, "write_durably", refuse)
    manager.finish()
    assert record.unsaved == [(2, "checkpoint")]
    assert {path.name for path in folder.path.iterdir()} == {"latest", "step-00000001"}


def test_a_disk_that_vanishes_when_a_checkpoint_is_complete_does_not_end_the_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prune_and_vanish(folder: CheckpointFolder) -> None:
        prune(folder)
        run.rename(tmp_path / "unmounted")

    prune = CheckpointFolder._prune
    run, record = tmp_path / "run", Record()
    run.mkdir()
    folder = CheckpointFolder(run / "checkpoints")
    manager = CheckpointManager(folder, load_config("toy"), small_tokenizer(), {}, Session(world), record)
    manager.begin(take_snapshot, state(1), None)
    monkeypatch.setattr(CheckpointFolder, "_prune", prune_and_vanish)
    manager.finish()
    assert ([event.step for event in record.saved], record.unsaved) == ([1], [])
    manager.begin(take_snapshot, state(2), None)
    assert record.unsaved == [(2, "checkpoint")]
    (tmp_path / "unmounted").rename(run)
    assert folder.steps() == [1]


def test_nothing_is_written_where_a_disk_has_vanished_before_the_bundle(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_vanish(folder: Path, rank: int, shards: list[Shard]) -> dict[str, str]:
        written = write_shards(folder, rank, shards)
        run.rename(tmp_path / "unmounted")
        return written

    run, record = tmp_path / "run", Record()
    run.mkdir()
    folder = CheckpointFolder(run / "checkpoints")
    manager = CheckpointManager(folder, load_config("toy"), small_tokenizer(), {}, Session(world), record)
    monkeypatch.setattr("dstransformer.training.checkpoints.manager.write_shards", write_and_vanish)
    manager.begin(take_snapshot, state(1), None)
    manager.finish()
    assert record.unsaved == [(1, "checkpoint")]
    assert not run.exists()


def test_the_hash_of_a_checkpoint_is_that_of_its_manifest(world: World, tmp_path: Path) -> None:
    folder, record = CheckpointFolder(tmp_path / "checkpoints"), Record()
    manager = CheckpointManager(folder, load_config("toy"), small_tokenizer(), {}, Session(world), record)
    manager.begin(take_snapshot, state(1), None)
    manager.finish()
    manager.add_score(state(1), Score("bleu", 20.0), interim=False)
    hashes = [event.sha256 for event in record.saved]
    assert len(set(hashes)) == 2
    assert hashes[1] == hashlib.sha256((folder.path / "step-00000001" / "manifest.json").read_bytes()).hexdigest()
