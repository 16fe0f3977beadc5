"""Small parallel texts, and building corpora from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.cli import main

ENGLISH = "the old new red dog cat sees a"
GERMAN = "der alte neue rote Hund sieht ein Ä"
FRENCH = "le vieux la neuve rouge chien voit un"

#: Writes a text with this many pairs and returns the options to build a corpus from it.
WriteText = Callable[..., list[str]]


def sentence(number: int, words: str) -> str:
    """Four of the words and the number; different for every number."""
    names = words.split()
    return " ".join(names[number // len(names) ** k % len(names)] for k in range(4)) + f" {number}."


def text_and_corpus(folder: Path, pairs: int, *more: str) -> tuple[list[str], dict[str, bytes]]:
    """Write a text in which pairs repeat; return the options of a build from it, and the corpus one process makes."""
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "400", "--valid-size", "50"]
    options += more
    for side, words in (("src", ENGLISH), ("tgt", GERMAN)):
        path = folder / f"{side}.txt"
        path.write_text("".join(sentence(number % (pairs - 999), words) + "\n" for number in range(pairs)))
        options += [f"--{side}", str(path)]
    assert build(*options, "--out", folder / "one") == 0
    return options, contents(folder / "one")


def some_chunks(work: Path) -> bool:
    """Whether workers have finished a chunk of the stage ``clean``."""
    return any(work.glob("clean.partial/chunks/*/judged-??????/chunk.json"))


def without_vocab(options: list[str]) -> list[str]:
    """The options of a build without ``--vocab-size``."""
    at = options.index("--vocab-size")
    return options[:at] + options[at + 2 :]


def build(*options: str | Path) -> int:
    """Run ``dst-prep build`` in this process; return the exit status."""
    return main(["build", "--workers", "1", *map(str, options)])


def contents(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuses(capsys: pytest.CaptureFixture[str], status: int, code: int = 2) -> str:
    """Check that a command failed with a single error line, its last; return the line."""
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith(("dst: error: ", "dst-prep: error: "))]
    assert status == code
    assert len(errors) == 1, lines
    assert errors[0] == lines[-1]
    return errors[0]
