"""Checkpoints that cannot be made visible."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.corpora import small_tokenizer

from dstransformer.config import load_config
from dstransformer.errors import StorageError
from dstransformer.training import checkpoint as checkpoint_module
from dstransformer.training.checkpoint import CheckpointFolder, TrainState
from dstransformer.training.engine import Snapshot
from dstransformer.training.processes import read_processes
from dstransformer.training.saver import Saver
from dstransformer.training.world import World, join_world, leave_world


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield join_world(read_processes(os.environ))
    leave_world()


class Weightless:
    """All that the saver asks of an engine."""

    def snapshot(self) -> Snapshot:
        return Snapshot({"rank-0.pt": {"step": 1}}, {})


def test_a_disk_that_is_full_at_the_manifest_leaves_nothing_behind(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    folder = CheckpointFolder(tmp_path / "checkpoints")
    saver = Saver(folder, world, load_config("toy"), small_tokenizer(), {}, lambda _: None)
    engine: Any = Weightless()
    saver.begin(engine, TrainState(1, 0, 1, 1, 1, "fp32", "none"), None)
    saver.finish()
    saver.begin(engine, TrainState(2, 0, 2, 1, 1, "fp32", "none"), None)
    saver._pending.part.result()  # type: ignore[union-attr]
    monkeypatch.setattr(checkpoint_module, "write_durably", refuse)
    with pytest.raises(StorageError, match="make room"):
        saver.finish()
    assert {path.name for path in folder.path.iterdir()} == {"latest", "step-00000001"}
