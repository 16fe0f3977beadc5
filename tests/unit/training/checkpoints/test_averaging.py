"""Which checkpoints of a run ``dst average`` takes, and its errors."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from support.data.corpora import small_tokenizer

from dstransformer.cli import main
from dstransformer.config import load_config
from dstransformer.data.plan import Position
from dstransformer.errors import DataError, StorageError
from dstransformer.io.files import file_sha256
from dstransformer.model import open_bundle, save_bundle
from dstransformer.training.checkpoints.averaging import average_run
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import Checkpoint, TrainState

CONFIG = load_config("toy", ["schedule.warmup_steps=20", "checkpoint.keep_last=4", "checkpoint.average_last=3"])


def write(run: Path, *steps: int) -> list[Checkpoint]:
    run.mkdir(exist_ok=True)
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
    with pytest.raises(DataError, match=r"schedule.warmup_steps = 20"):
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
    with pytest.raises(DataError, match=r"--last 2: .*newest 1"):
        averaged(tmp_path, last=2)
    write(tmp_path, 20)
    with pytest.raises(DataError, match=r"--last 2: 1 of .*warm-up"):
        averaged(tmp_path, last=2)
    with pytest.raises(DataError, match="--last 0"):
        averaged(tmp_path, last=0)


def test_named_checkpoints_are_averaged_wherever_they_lie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 10, 20, 30, 40, 50)
    out = tmp_path / "named"
    assert main(["average", str(tmp_path), "--steps", "40", "step-00000010", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: the average of steps 10, 40\n"
    assert open_bundle(out).load_weights()["weight"].tolist() == [25.0, 25.0]
    assert open_bundle(out).provenance["averaged_steps"] == [10, 40]
    for steps, complaint in (
        (["25"], "--steps 25: .* has no checkpoint of that step, only of 10, 20, 30, 40, 50"),
        (["20", "step-00000020"], "--steps 20 is given 2 times: name each checkpoint once"),
        (["latest"], "'latest' is not a step: write 4000 or step-00004000, and RUN before --steps"),
        (["10", "--best", "1"], "--best: not allowed with argument --steps"),
    ):
        assert main(["average", str(tmp_path), "--steps", *steps, "--out", str(tmp_path / "none")]) == 2
        assert re.search(complaint, capsys.readouterr().err)
    assert not (tmp_path / "none").exists()


def test_a_damaged_checkpoint_is_skipped_or_refused_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = write(tmp_path, 20, 30, 40)
    (first.path / "manifest.json").write_text("{")
    assert averaged(tmp_path) == [30, 40]
    assert caplog.messages == [
        f"{first.path}/manifest.json is damaged (Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1)); the checkpoint is skipped and not deleted"
    ]
    (second.bundle / "model.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="step-00000030"):
        averaged(tmp_path)


def test_no_older_checkpoint_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    damaged = write(tmp_path, 20, 30, 40, 50, 60)[3]
    (damaged.path / "manifest.json").write_text("{")
    assert averaged(tmp_path) == [40, 60]
    assert averaged(tmp_path, last=3) == [30, 40, 60], "within the last four, which the run keeps in any case"
    with pytest.raises(DataError, match=r"--last 4: .*newest 3"):
        averaged(tmp_path, last=4)


@pytest.mark.parametrize("name", ["manifest.json", "bundle/config.yaml", "bundle/model.safetensors"])
def test_the_final_average_leaves_out_a_damaged_checkpoint_but_none_that_cannot_be_read_now(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = write(tmp_path, 20, 30, 40)[1].path / name
    folder, opened = CheckpointFolder(tmp_path / "checkpoints"), Path.open

    def open_file(path: Path, *values: Any, **named: Any) -> IO[Any]:
        if path == damaged:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return opened(path, *values, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_file)
        with pytest.raises(StorageError, match=f"{damaged}: Stale file handle"):
            folder.intact()
    damaged.write_text("{")
    assert [checkpoint.state.step for checkpoint in folder.intact()] == [20, 40]
