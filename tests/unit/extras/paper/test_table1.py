"""``dst table1`` on tiny layers: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dstransformer.cli import main
from dstransformer.extras.paper import table1
from dstransformer.extras.paper.table1 import larger_half
from dstransformer.extras.paper.table1_layers import LAYER_TYPES
from dstransformer.io.products import write_marker

TINY = ["table1", "--device", "cpu", "--quick", "--lengths", "16", "8", "--widths", "4", "8", "--neighbourhood", "4"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("\n") == 1
    assert errors.startswith("dst: error: ")
    return errors


def test_the_table_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results" / "one"
    assert main([*TINY, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["table1.json", "table1.md", "table1.png", "table1.svg"]
    assert printed.startswith((out / "table1.md").read_text())
    for kind in LAYER_TYPES:
        assert f"| {kind.name} | {kind.complexity} | {kind.formula} | n^" in printed
    assert "| recurrent | O(n) | 16 | O(n) | 16 |" in printed
    assert "| convolutional | O(1) | 1 | O(log_k(n)) | 3 |" in printed

    written = json.loads((out / "table1.json").read_text())
    assert written["format_version"] == 1
    assert written["settings"]["lengths"] == written["fitted"]["lengths"] == [8, 16]
    assert [layer["name"] for layer in written["layers"]] == [kind.name for kind in LAYER_TYPES]
    for layer in written["layers"]:
        assert [(cost["n"], cost["d"]) for cost in layer["measured"]] == [(8, 4), (8, 8), (16, 4), (16, 8)]
        assert all(cost["forward_seconds"] > 0 and cost["peak_bytes"] > 0 for cost in layer["measured"])
        assert layer["fits"].keys() == {"time", "memory", "count"}
    attention = written["layers"][0]
    assert attention["measured"][-1]["multiply_adds"] == 2 * 16**2 * 8
    assert attention["fits"]["count"]["n_exponent"] == pytest.approx(2)
    assert attention["fits"]["count"]["d_exponent"] == pytest.approx(1)


def test_only_an_earlier_result_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out := tmp_path / "out").mkdir()
    assert main([*TINY, "--out", str(out)]) == 0
    capsys.readouterr()
    before = (out / "table1.json").read_text()
    assert "already exists: choose another --out, or replace it with --overwrite" in refused(
        capsys, *TINY, "--out", str(out)
    )
    assert (out / "table1.json").read_text() == before
    assert main([*TINY, "--out", str(out), "--overwrite"]) == 0
    capsys.readouterr()
    assert (out / "table1.json").read_text() != before
    (out / "mine.txt").write_text("mine")
    line = refused(capsys, *TINY, "--out", str(out), "--overwrite")
    assert "holds mine.txt, which is not part of a result of `dst table1`" in line
    (out / "mine.txt").unlink()
    (out / "table1.json").write_text("[]")
    assert "is not a result of `dst table1`" in refused(capsys, *TINY, "--out", str(out), "--overwrite")
    (corpus := tmp_path / "corpus").mkdir()
    write_marker(corpus, "corpus")
    assert "is a corpus, which must not be changed" in refused(capsys, *TINY, "--out", str(corpus / "table"))
    (tmp_path / "file").touch()
    assert "is a file; name a folder" in refused(capsys, *TINY, "--out", str(tmp_path / "file"))


@pytest.mark.parametrize(("arguments", "message"), [
    ("--lengths 0 8", "--lengths 0: give numbers from 1"),
    ("--lengths -4 8", "--lengths -4: give numbers from 1"),
    ("--lengths 8", "--lengths 8: give at least two, as an exponent is fitted"),
    ("--widths 8", "--widths 8: give at least two"),
    ("--widths 8 8", "--widths names a number twice: 8 8"),
    ("--lengths 8 x", "argument --lengths: invalid int value: 'x'"),
    ("--lengths", "argument --lengths: expected at least one argument"),
    ("--lengths 8 16", "--neighbourhood 32 is larger than every length (the longest is 16)"),
    ("--neighbourhood 2", "--neighbourhood 2: give a number from 3"),
    ("--kernel 1", "--kernel 1: give a number from 2"),
    ("--kernel 999 --lengths 64 128", "--kernel 999 is larger than every length (the longest is 128)"),
    ("--batch 0", "--batch 0: give a number from 1"),
    ("--device gpu", "cannot use the device 'gpu'"),
    ("--device meta", "cannot use the device 'meta'"),
    ("--lengths 64 10000000", "length 10,000,000 with width 256 needs about 1,600,"),
    ("--widths 64 10000000", "length 1,024 with width 10,000,000 needs about 3,200,"),
])  # fmt: skip
def test_invalid_arguments_are_refused(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert message in refused(capsys, "table1", "--quick", *device, *arguments.split())


def test_running_out_of_memory_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def too_much(*_: object) -> None:
        torch.empty(2**50, dtype=torch.uint8)

    monkeypatch.setattr(table1, "LAYER_TYPES", [replace(kind, build=too_much) for kind in LAYER_TYPES])
    assert "not enough memory for self-attention at length 8 and width 4" in refused(capsys, *TINY)


def test_fits_use_the_larger_half() -> None:
    assert larger_half((1, 2)) == (1, 2)
    assert larger_half((1, 2, 3)) == (2, 3)
    assert larger_half((1, 2, 3, 4, 5)) == (3, 4, 5)
