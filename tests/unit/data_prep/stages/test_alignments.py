"""Alignments of the training text: checked where they enter, and kept through cleaning, deduplication and encoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.data.prep import build, refuses

from dstransformer.data import Corpus, Tokenizer
from dstransformer.data.alignment import WordBorders

#: Source, target, alignment, and the linked words that the corpus should have; None if the pair is dropped.
PAIRS = [
    ("the big\t house", "das  große Haus", "2-2 0-0 1-1 0-0", {("the", "das"), ("big", "große"), ("house", "Haus")}),
    ("one", "eins zwei drei vier fünf sechs sieben acht neun", "0-5", None),
    ("see a\u00a0house .", "Haus ￥ sehen .", "0-2 2-0 3-3", {("see", "sehen"), ("house", "Haus"), (".", ".")}),
    ("the big house", "das große Haus", "0-2", None),
    ("\u00bd\u2028x\u200b y", "½ \u200b y", "2-2 0-0", {("y", "y"), ("1⁄2", "½")}),
    ("a house¨s home", "ein Haus", "1-1 2-1", {("house", "Haus"), ("home", "Haus"), ("̈s", "Haus")}),
    ("the house", "das Haus", "", set()),
]


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    columns = dict(zip(("src", "tgt", "align"), zip(*(pair[:3] for pair in PAIRS), strict=True), strict=True))
    for name, lines in columns.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "valid").write_text("hello\n")
    (tmp_path / "other").write_text("hallo\n")
    given = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "330"]
    given += ["--src", f"{tmp_path}/src", "--tgt", f"{tmp_path}/tgt", "--alignments", f"{tmp_path}/align"]
    return [*given, "--valid-src", f"{tmp_path}/valid", "--valid-tgt", f"{tmp_path}/other"]


def words(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    """The words of a sentence's pieces, as the stored links count them."""
    numbers = WordBorders(tokenizer).numbers(ids, np.array([len(ids)]))
    return [tokenizer.decode([ids[numbers == number]])[0].strip() for number in range(numbers.max() + 1)]


def linked_words(path: Path) -> list[set[tuple[str, str]]]:
    corpus = Corpus.open(path)
    split = corpus.split("train")
    found = []
    for row in range(len(split)):
        src, _, tgt, _ = split.gather(np.array([row]))
        links, counts = split.gather_links(np.array([row]))
        assert counts.tolist() == [len(links)]
        both = words(corpus.tokenizer.src, src), words(corpus.tokenizer, tgt)
        found.append({(both[0][a], both[1][b]) for a, b in links.tolist()})
    return found


def test_links_follow_their_words_through_cleaning(tmp_path: Path, options: list[str]) -> None:
    assert build(*options, "--out", tmp_path / "corpus") == 0
    kept = [links for *_, links in PAIRS if links is not None]
    assert linked_words(tmp_path / "corpus") == kept
    manifest = Corpus.open(tmp_path / "corpus").manifest
    assert manifest.splits["train"].links == sum(map(len, kept))


def test_a_corpus_without_alignments_has_no_links(tmp_path: Path, options: list[str]) -> None:
    at = options.index("--alignments")
    assert build(*options[:at], *options[at + 2 :], "--out", tmp_path / "corpus") == 0
    train = Corpus.open(tmp_path / "corpus").split("train")
    assert (train.info.links, train.is_aligned) == (None, False)


def test_what_does_not_fit_its_pair_is_refused(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (tmp_path / "align").read_text().splitlines()
    (tmp_path / "align").write_text("".join(one + "\n" for one in ["0-0 1-1 2-3", *lines[1:]]))
    message = "align, line 1, column 9: 2-3 names word 3 of the target sentence"
    assert message in refuses(capsys, build(*options, "--out", tmp_path / "corpus"))


def test_another_number_of_lines_and_moses_punctuation_are_refused(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    done = build(*options, "--punctuation", "moses", "--out", tmp_path / "corpus")
    assert "--punctuation moses would change the words" in refuses(capsys, done)
    with (tmp_path / "align").open("a") as file:
        file.write("\n")
    assert "more alignments than the 7 pairs" in refuses(capsys, build(*options, "--out", tmp_path / "corpus"))
    (tmp_path / "align").write_text("0-0\n")
    assert "1 alignments, fewer than pairs" in refuses(capsys, build(*options, "--out", tmp_path / "corpus"))
