"""``dst align`` and ``dst translate --alignments`` with a model that has learned alignments, and one that has not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.data.prep import ENGLISH, GERMAN, build, sentence
from support.training.trained import trained_bundle

from dstransformer.cli import main
from dstransformer.corpus import Direction
from dstransformer.decoding.aligner import Aligner
from dstransformer.errors import DataError
from dstransformer.model import open_bundle

PAIRS, STEP = 600, 20
HELD_OUT = PAIRS // STEP
LINKS = "0-4 1-3 2-2 3-1 4-0"


def pair(number: int) -> tuple[str, str]:
    """A sentence, and its translation word by word in reverse order."""
    return sentence(number, ENGLISH), " ".join(reversed(sentence(number, GERMAN).split()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, a corpus with alignments and a model trained on it."""
    folder = tmp_path_factory.mktemp("align")
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "400"]
    for flag, numbers in (("", [n for n in range(PAIRS) if n % STEP]), ("valid-", range(0, PAIRS, STEP))):
        for side, lines in zip(("src", "tgt"), zip(*map(pair, numbers), strict=True), strict=True):
            (folder / f"{flag}{side}").write_text("".join(line + "\n" for line in lines))
            options += [f"--{flag}{side}", f"{folder}/{flag}{side}"]
    (folder / "links").write_text(f"{LINKS}\n" * (PAIRS - HELD_OUT))
    assert build(*options, "--alignments", folder / "links", "--out", folder / "corpus") == 0
    trained_bundle(folder / "guided", folder / "corpus", updates=400, guided=1.0)
    return folder


def right_links(path: Path) -> float:
    """The share of the links in a file, and of those that it should have, that are in both (1 - AER)."""
    lines = path.read_text().splitlines()
    assert len(lines) == HELD_OUT
    found, wanted = [set(line.split()) for line in lines], set(LINKS.split())
    assert all(line == " ".join(sorted(line.split())) for line in lines)
    return 2 * sum(len(links & wanted) for links in found) / sum(len(links) + len(wanted) for links in found)


def test_a_guided_model_aligns_given_translations(folder: Path, tmp_path: Path) -> None:
    files = ["--src", f"{folder}/valid-src", "--tgt", f"{folder}/valid-tgt"]
    assert main(["align", f"{folder}/guided", *files, "--output", f"{tmp_path}/found"]) == 0
    assert right_links(tmp_path / "found") > 0.8
    small = ["--batch-tokens", "1", "--output", f"{tmp_path}/small"]
    assert main(["align", f"{folder}/guided", *files, *small]) == 0
    assert (tmp_path / "small").read_text() == (tmp_path / "found").read_text()


def test_translations_come_with_their_alignments(folder: Path, tmp_path: Path) -> None:
    files = [f"{folder}/valid-src", "--output", f"{tmp_path}/out", "--alignments", f"{tmp_path}/found"]
    assert main(["translate", f"{folder}/guided", *files]) == 0
    outputs, found = ((tmp_path / name).read_text().splitlines() for name in ("out", "found"))
    sources = (folder / "valid-src").read_text().splitlines()
    assert len(found) == len(outputs) == HELD_OUT
    for source, output, line in zip(sources, outputs, found, strict=True):
        links = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert {target for _, target in links} == set(range(len(output.split())))
        assert all(0 <= number < len(source.split()) for number, _ in links)


def test_empty_and_long_lines_get_no_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("the old\u00a0dog\n\nsees\n" + "the " * 50 + "\n")
    (tmp_path / "tgt").write_text("Hund alte der\nder\n\nder\n")
    files = ["--src", f"{tmp_path}/src", "--tgt", f"{tmp_path}/tgt", "--max-tokens", "20"]
    assert main(["align", f"{folder}/guided", *files, "--output", f"{tmp_path}/found"]) == 0
    first, *others = (tmp_path / "found").read_text().splitlines()
    assert {link.split("-")[1] for link in first.split()} == {"0", "1", "2"}
    assert others == ["", "", ""]


def test_what_cannot_be_aligned_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["translate", f"{folder}/guided", f"{folder}/valid-src", "--alignments", f"{tmp_path}/found"]
    assert main([*given, "--output", f"{tmp_path}/out", "--long", "split"]) == 2
    assert "leave out --long split" in capsys.readouterr().err
    assert main([*given, "--output", f"{tmp_path}/out", "--resume"]) == 2
    assert "use `dst align` afterwards" in capsys.readouterr().err
    assert not (tmp_path / "found").exists()


def test_a_model_of_several_directions_is_refused(folder: Path) -> None:
    directions = Direction("en", "de", ">>deu<<"), Direction("de", "en", ">>eng<<")
    bundle = replace(open_bundle(folder / "guided"), directions=directions)
    with pytest.raises(DataError, match="translates in several directions: name the bundle of a model of one"):
        Aligner.load(bundle)
