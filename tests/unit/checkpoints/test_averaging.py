"""Which checkpoints of a run ``dst average`` takes, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.corpora import small_tokenizer

from dstransformer.batching import Position
from dstransformer.checkpoints.averaging import average_run
from dstransformer.checkpoints.format import Checkpoint, TrainState
from dstransformer.checkpoints.retention import CheckpointFolder
from dstransformer.config import load_config
from dstransformer.errors import DataError
from dstransformer.files import file_sha256
from dstransformer.model import open_bundle, save_bundle

CONFIG = load_config("toy", ["schedule.warmup_steps=20", "checkpoint.keep_last=4", "checkpoint.average_last=3"])


def write(run: Path, *steps: int) -> list[Checkpoint]:
    folder = CheckpointFolder(run / "checkpoints", keep_last=9)
    written = []
    for step in steps:
        bundle = folder.begin(step) / "bundle"
        save_bundle(bundle, {"weight": torch.full((2,), float(step))}, CONFIG, small_tokenizer(), {})
        files = {f"bundle/{path.name}": file_sha256(path) for path in bundle.iterdir()}
        written.append(folder.publish(TrainState(step, Position(0, step), 1, 1, "fp32", "corpus"), None, files))
    return written


def averaged(run: Path, last: int | None = None) -> list[int]:
    return [c.state.step for c in average_run(run, run / "average", last=last, overwrite=True)]


def test_by_default_it_averages_what_the_run_would(tmp_path: Path) -> None:
    write(tmp_path, 10)
    with pytest.raises(DataError, match=r"no checkpoint of .* is past its warm-up \(schedule.warmup_steps = 20\)"):
        averaged(tmp_path)
    write(tmp_path, 20)
    assert averaged(tmp_path) == [20]
    write(tmp_path, 30)
    assert averaged(tmp_path) == [20, 30]
    write(tmp_path, 40, 50)
    assert averaged(tmp_path) == [30, 40, 50]
    assert open_bundle(tmp_path / "average").load_weights()["weight"].tolist() == [40.0, 40.0]


def test_too_many_checkpoints_are_refused_with_the_number_available(tmp_path: Path) -> None:
    write(tmp_path, 10)
    with pytest.raises(DataError, match=r"--last 2: .* has only its newest 1 checkpoint: lower --last"):
        averaged(tmp_path, last=2)
    write(tmp_path, 20)
    with pytest.raises(DataError, match=r"--last 2: 1 of the newest 2 checkpoints of .* are past its warm-up"):
        averaged(tmp_path, last=2)
    with pytest.raises(DataError, match="--last 0: average at least one checkpoint"):
        averaged(tmp_path, last=0)


def test_a_damaged_checkpoint_is_skipped_or_refused_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = write(tmp_path, 20, 30, 40)
    (first.path / "manifest.json").write_text("{")
    assert averaged(tmp_path) == [30, 40]
    assert caplog.messages == [f"{first.path}/manifest.json is damaged; the checkpoint is skipped and not deleted"]
    (second.bundle / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"step-00000030.*; or move that checkpoint out of the run to average the others"
    ):
        averaged(tmp_path)
