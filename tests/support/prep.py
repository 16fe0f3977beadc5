"""Small texts in two languages, and builds of corpora from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.cli import main

ENGLISH = "the old new red dog cat sees a"
GERMAN = "der alte neue rote Hund sieht ein Ä"
FRENCH = "le vieux la neuve rouge chien voit un"

#: Writes a text of so many pairs and returns the options of a build from it.
WriteText = Callable[..., list[str]]


def sentence(number: int, words: str) -> str:
    """Four of the words and the number, so that every number has a sentence of its own."""
    names = words.split()
    return " ".join(names[number // len(names) ** k % len(names)] for k in range(4)) + f" {number}."


def without_vocab(options: list[str]) -> list[str]:
    """The options of a build, without the size of its vocabulary."""
    at = options.index("--vocab-size")
    return options[:at] + options[at + 2 :]


def build(*options: str | Path) -> int:
    """``dst-prep build`` in this process; its exit status."""
    return main(["build", "--workers", "1", *map(str, options)])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuses(capsys: pytest.CaptureFixture[str], status: int, code: int = 2) -> str:
    """The single line with which a command refused."""
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("dst-prep: error: ")]
    assert status == code
    assert len(errors) == 1, lines
    assert errors[0] == lines[-1]
    return errors[0]
