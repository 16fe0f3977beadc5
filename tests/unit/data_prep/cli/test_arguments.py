"""Invalid option values: one error line that names the option and the value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.cli import main

BUILD = ["build", "--source", "toy", "--out"]


@pytest.mark.parametrize(("option", "value", "wanted"), [
    ("--pairs", "many", "'many' is not a whole number of 1 or more"),
    ("--pairs", "0", "'0' is not a whole number of 1 or more"),
    ("--pairs", "1e5", "'1e5' is not a whole number of 1 or more"),
    ("--valid-size", "x", "'x' is not a whole number of 0 or more"),
    ("--valid-size", "-1", "'-1' is not a whole number of 0 or more"),
    ("--seed", "", "'' is not a whole number of 0 or more"),
    ("--max-ratio", "0.5", "'0.5' is not a number of 1 or more"),
    ("--max-ratio", "nan", "'nan' is not a number of 1 or more"),
    ("--max-ratio", "inf", "'inf' is not a number of 1 or more"),
    ("--character-coverage", "99.98%", "'99.98%' is not a number from 0.98 to 1"),
    ("--character-coverage", "0", "'0' is not a number from 0.98 to 1"),
    ("--symbols", "", "the symbol '' is empty: choose one such as <ph1>"),
    ("--symbols", "<a b>", "the symbol '<a b>' has a space or an invisible character: choose one such as <ph1>"),
    ("--symbols", "a\u200b", "the symbol 'a\\u200b' has a space or an invisible character: choose one such as <ph1>"),
    ("--symbols", "▁<a>", "the symbol '▁<a>' has a ▁, which stands for a space: choose one such as <ph1>"),
    ("--symbols", "<unk>", "the symbol '<unk>' holds the name of a special piece: choose one such as <ph1>"),
    ("--symbols", "a" * 101, f"the symbol '{'a' * 40}' has 101 characters, more than 100: choose one such as <ph1>"),
])  # fmt: skip
def test_invalid_values_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, wanted: str
) -> None:
    assert main([*BUILD, str(tmp_path / "corpus"), option, value]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"dst-prep: error: argument {option}: {wanted}; see `dst-prep build --help`\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "wanted"), [
    ([], "the following arguments are required: COMMAND; see `dst-prep --help`"),
    (["build", "--source", "toy"], "the following arguments are required: --out; see `dst-prep build --help`"),
    (["read", "--source", "tatoeba", "--work", "w"], "argument --source: invalid choice: 'tatoeba'"),
])  # fmt: skip
def test_invalid_command_lines_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], wanted: str
) -> None:
    assert main(options) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert wanted in lines[0]


def test_a_closed_pipe_is_not_a_failure(toy_corpus: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "data_prep", "info", str(toy_corpus), "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("source", "option"), [
    ("files", ["--pair", "fr-en"]), ("toy", ["--src", "text.en"]), ("wmt14", ["--pairs", "5"]), ("toy", ["--offline"]),
])  # fmt: skip
def test_an_option_of_another_source_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, option: list[str]
) -> None:
    assert main(["build", "--source", source, "--out", str(tmp_path / "corpus"), *option]) == 2
    assert f"{option[0]} is not an option of source {source}: leave it out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
