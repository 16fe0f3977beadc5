"""Checkpoints that cannot be completed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data.corpora import small_tokenizer

from dstransformer.batching import Position
from dstransformer.checkpoints import retention
from dstransformer.checkpoints.format import Snapshot, TrainState
from dstransformer.checkpoints.pieces import Piece
from dstransformer.checkpoints.retention import CheckpointFolder
from dstransformer.checkpoints.saver import Saver
from dstransformer.config import load_config
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.errors import StorageError


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield join_world(read_processes(os.environ))
    leave_world()


def take_snapshot() -> Snapshot:
    return Snapshot([Piece("w", 0, {"weight": torch.ones(2)})], {})


def test_a_full_disk_at_the_manifest_leaves_no_partial_checkpoint(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    folder = CheckpointFolder(tmp_path / "checkpoints")
    saver = Saver(folder, world, load_config("toy"), small_tokenizer(), {}, lambda _: None)
    saver.begin(take_snapshot, TrainState(1, Position(0, 1), 1, 1, "fp32", "none"), None)
    saver.finish()
    saver.begin(take_snapshot, TrainState(2, Position(0, 2), 1, 1, "fp32", "none"), None)
    saver._pending.part.result()  # type: ignore[union-attr]
    monkeypatch.setattr(retention, "write_durably", refuse)
    with pytest.raises(StorageError, match="make room"):
        saver.finish()
    assert {path.name for path in folder.path.iterdir()} == {"latest", "step-00000001"}
