"""``dst plot``: the pictures it draws, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.training.metrics import write_run

from dstransformer.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "base")
    write_run(tmp_path / "runs" / "big")
    return tmp_path


@pytest.mark.parametrize(("arguments", "made"), [
    ("runs/base", "training.png"),
    ("runs/base runs/big --out both.svg --smooth 3", "both.svg"),
    ("--out runs/base/curves.pdf runs/base", "runs/base/curves.pdf"),
    ("--schedule base big", "schedule.png"),
    ("--schedule base --updates 500 --out rate.svg", "rate.svg"),
])  # fmt: skip
def test_a_picture_is_replaced_only_with_overwrite(
    here: Path, arguments: str, made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", *arguments.split()]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == made
    assert "update" in said[0]
    before = (here / made).read_bytes()
    assert len(before) > 5_000
    assert main(["plot", *arguments.split()]) == 2
    assert capsys.readouterr().err == (
        f"dst: error: {made} already exists: replace it with --overwrite, or give another name\n"
    )
    assert main(["plot", *arguments.split(), "--overwrite"]) == 0
    assert (here / made).read_bytes() == before


@pytest.mark.parametrize(("arguments", "message"), [
    ("", "name either the folders of runs, or presets after --schedule"),
    ("runs/base --schedule base", "name either the folders of runs, or presets"),
    ("--schedule bsae", "unknown preset 'bsae'"),
    ("--schedule base --smooth 2", "--smooth is for the curves of runs"),
    ("--schedule base --updates 1", "--updates 1: give a number from 2"),
    ("runs/base --updates 5", "--updates is the range of --schedule"),
    ("runs/base --smooth 0", "--smooth 0: give a number of records, from 1"),
    ("runs/base --out plot.gif", "--out plot.gif: the name must end in .png, .svg or .pdf"),
    ("runs/nowhere", "runs/nowhere is not a run: it does not exist"),
    ("runs/base runs/base", "the run runs/base is named twice"),
    ("runs/base ", "the name is empty: is a variable unset?"),
])  # fmt: skip
def test_invalid_arguments_are_refused(
    here: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", *(arguments.split(" ") if arguments else [])]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("\n") == 1
    assert errors.startswith("dst: error: ")
    assert message in errors
    assert not list(here.glob("*.*"))
