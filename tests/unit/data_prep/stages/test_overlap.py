"""Held-out text in the training text is counted, reported, and dropped from training if asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.data.prep import build, refuses

from data_prep.cli import main
from dstransformer.data import Corpus, Manifest
from dstransformer.data.manifest import Overlap
from dstransformer.errors import DataError

TRAIN = [(f"the number {n} is here", f"die Zahl {n} ist hier") for n in range(4500)]
VALIDATION = [("quite another sentence", "ein ganz anderer Satz"), ("and one more of them", "und noch einer davon")]
# The first pair is in the training text verbatim, the second in another Unicode form, the third with another
# translation; the fourth is not in it; the fifth repeats the first.
TEST = [TRAIN[7], ("the\u00a0number  4321 is here", "die Zahl 4321\tist hier"), (TRAIN[9][0], "falsch"), ("new", "neu")]
TEST.append(TRAIN[7])


def write(folder: Path) -> list[str]:
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "330"]
    for flag, name, pairs in (("", "train", TRAIN), ("valid-", "valid", VALIDATION), ("test-", "test", TEST)):
        for side, number in (("src", 0), ("tgt", 1)):
            path = folder / f"{name}.{side}"
            path.write_text("".join(f"{pair[number]}\n" for pair in pairs))
            options += [f"--{flag}{side}", str(path)]
    return options


@pytest.mark.parametrize("form", ["nfkc", "none"])
def test_overlap_is_counted_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    out = tmp_path / "corpus"
    assert build(*write(tmp_path), "--normalise", form, "--workers", "2", "--out", out) == 0
    wanted = {"validation": Overlap(sentences=0, pairs=0), "test": Overlap(sentences=4, pairs=3)}
    assert Manifest.load(out).overlap == wanted
    line = "4 of 5 test sentences (80.0%) are in the training text, 3 of them with the same translation"
    shown = capsys.readouterr()
    warnings = [text for text in shown.err.splitlines() if text.startswith("warning: ")]
    assert len(warnings) == 2, "once when it is found, once below the table"
    assert "scores on the test set may be too high: 80.0% of its sentences are in the training text" in warnings[0]
    assert "--drop-overlap" in warnings[0]
    assert line in shown.out
    assert "unknown pieces (<unk>): none" in shown.out
    assert "overlap" not in Manifest.load(out).cleaning.dropped
    assert [f"warning: {text}" for text in Manifest.load(out).warnings] == warnings[:1]
    page = tmp_path / "page.html"
    assert main(["report", str(out), "--out", str(page)]) == 0
    assert f'<p class="warning">{warnings[0]}</p>' in page.read_text(encoding="utf-8")
    assert main(["info", str(out)]) == 0
    assert line in capsys.readouterr().out


def test_a_build_that_fails_later_says_its_warnings_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(*write(tmp_path), "--max-tokens", "1", "--out", tmp_path / "corpus") == DataError.exit_code
    *_, warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: scores on the test set may be too high: 80.0%")
    assert error.startswith("dst-prep: error: all 4500 train pairs have more than 1 tokens")


def test_overlap_is_dropped_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, options = tmp_path / "corpus", write(tmp_path)
    assert build(*options, "--drop-overlap", "--out", out) == 0
    corpus = Corpus.open(out)
    assert corpus.manifest.cleaning.dropped["overlap"] == 3
    assert len(corpus.split("train")) == len(TRAIN) - 3
    assert len(corpus.split("test")) == len(TEST)
    assert corpus.manifest.overlap == dict.fromkeys(("validation", "test"), Overlap(sentences=0, pairs=0))
    assert "--drop-overlap" in corpus.manifest.command
    shown = capsys.readouterr()
    assert "warning" not in shown.err
    assert re.search(r"dropped: overlap +3 ", shown.out)
    assert "no sentence of validation or test is in the training text" in shown.out
    assert "is a corpus built from other inputs" in refuses(capsys, build(*options, "--out", out))


def test_dropping_the_whole_training_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write(tmp_path)
    (tmp_path / "valid.src").write_text((tmp_path / "train.src").read_text())
    (tmp_path / "valid.tgt").write_text((tmp_path / "train.tgt").read_text())
    message = refuses(capsys, build(*options, "--drop-overlap", "--out", tmp_path / "corpus"))
    assert "cleaning left nothing of 4,500 (overlap 4500): leave out --drop-overlap" in message
