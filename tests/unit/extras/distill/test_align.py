"""The step that aligns a corpus: which pairs an aligner gets, and what is refused of what it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dstransformer.errors import DataError
from dstransformer.extras.distill import align

SRC, TGT = ("a b\u00a0c\n", "\n", "d\n"), ("A  B\n", "empty\n", "D\n")


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two source files and their translations; the second pair of the first has an empty side."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("src", SRC), ("tgt", TGT)):
        Path(f"one.{name}").write_text("".join(lines[:2]))
        Path(f"two.{name}").write_text(lines[2])
    return {name: Path(file) for name, file in align.FILES.items()}


def run(command: str) -> subprocess.CompletedProcess[str]:
    files = ["--src", "one.src", "two.src", "--tgt", "one.tgt", "two.tgt", "--to", "alignments"]
    program = [sys.executable, "-m", "dstransformer.extras.distill.align", *files, "--command", command]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_an_aligner_gets_pairs_with_words_divided_by_single_spaces(pairs: dict[str, Path]) -> None:
    done = run("cp {src} got.src && cp {tgt} got.tgt && printf '0-0 2-1\\n0-0\\n' > {out}")
    assert done.returncode == 0, done.stderr
    assert Path("got.src").read_text() == "a b c\nd\n"
    assert Path("got.tgt").read_text() == "A B\nD\n"
    assert Path("alignments").read_text() == "0-0 2-1\n\n0-0\n"
    assert not [path.name for path in Path().glob("to_align*")]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo no memory; false", "alignments.command ended with status 1: no memory"),
        ("false | cat {src} > {out}", "alignments.command ended with status 1: it printed nothing"),
        ("cat {src} {tgt}", "the aligner did not write to_align.links"),
        (": > {out}", "the aligner wrote fewer lines than the 2 pairs of to_align.src to to_align.links"),
        ("echo 0-0 > {out}", "the aligner wrote fewer lines than the 2 pairs"),
        ("printf '0-0\\n0-0\\n0-0\\n' > {out}", "the aligner wrote more lines than the 2 pairs"),
        ("printf '0-0\\n0-0 1-0\\n' > {out}", "to_align.links, line 2, column 5: 1-0 names word 1 of the source"),
    ],
)
def test_a_faulty_aligner_is_refused_in_one_line(pairs: dict[str, Path], command: str, message: str) -> None:
    Path("alignments").write_text("earlier\n")
    done = run(command)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("distill: "))
    assert line.startswith(f"distill: error: {message}")
    assert Path("alignments").read_text() == "earlier\n"


def test_texts_of_different_lengths_are_refused(pairs: dict[str, Path]) -> None:
    with pytest.raises(DataError, match=r"one\.src and two\.tgt"):
        list(align.iter_words(["one.src"], ["two.tgt"]))
    Path("none").write_text("\n\n")
    with pytest.raises(DataError, match="no pair has words on both sides"):
        align.write_pairs(["one.src"], ["none"], pairs["src"], pairs["tgt"])
