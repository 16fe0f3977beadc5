"""``dst align`` and ``dst translate --alignments`` with a model that has learned the alignments of the toy grammar."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.data.prep import build
from support.training.trained import trained_bundle

from data_prep.cli import main as prep
from dstransformer.cli import main
from dstransformer.data import Direction
from dstransformer.decoding.aligner import Aligner
from dstransformer.errors import DataError
from dstransformer.model import open_bundle

#: Pairs of at most so many words are trained on and aligned, which needs less training than all of the grammar.
WORDS = 6

TRAINING = {"updates": 300, "sentences": 192, "anneal": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with the grammar's alignments, a held-out text with its reference, and a model trained with guidance."""
    folder = tmp_path_factory.mktemp("align")
    sizes = ["--pairs", "24000", "--valid-size", "4", "--test-size", "400", "--vocab-size", "1500"]
    options = ["--source", "toy", *sizes, "--max-words", str(WORDS), "--aligned"]
    assert build(*options, "--out", folder / "corpus") == 0
    names = ("src", "tgt", "alignments")
    assert prep(["text", f"{folder}/corpus", *(f"--{name}={folder / name}" for name in names)]) == 0
    lines = zip(*((folder / name).read_text().splitlines() for name in names), strict=True)
    short = [line for line in lines if max(len(text.split()) for text in line[:2]) <= WORDS]
    for name, texts in zip(names, zip(*short, strict=True), strict=True):
        (folder / name).write_text("".join(f"{text}\n" for text in texts))
    trained_bundle(folder / "guided", folder / "corpus", guided=2.0, **TRAINING)
    return folder


def held_out(folder: Path) -> int:
    """The number of held-out pairs."""
    return len((folder / "src").read_text().splitlines())


def align(folder: Path, model: str, *options: str) -> int:
    return main(["align", f"{folder}/{model}", f"--src={folder}/src", f"--tgt={folder}/tgt", *options])


def error_rate(folder: Path, model: str, capsys: pytest.CaptureFixture[str], *options: str) -> float:
    capsys.readouterr()
    assert align(folder, model, f"--reference={folder}/alignments", *options) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["pairs"] == held_out(folder) > 60
    assert figures["sure"] > 4 * figures["pairs"]
    aer: float = figures["aer"]
    return aer


def test_a_guided_model_aligns_as_the_grammar_does(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_rate(folder, "guided", capsys) < 0.1
    found = tmp_path / "found"
    assert error_rate(folder, "guided", capsys, f"--output={found}") < 0.1
    assert align(folder, "guided", "--batch-tokens=1", f"--output={tmp_path}/small") == 0
    assert (tmp_path / "small").read_text() == found.read_text()
    assert all(line == " ".join(sorted(line.split(), key=pair)) for line in found.read_text().splitlines())


def pair(link: str) -> list[int]:
    return list(map(int, link.split("-")))


@pytest.mark.slow
@pytest.mark.extended
def test_without_guidance_the_same_training_aligns_badly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained_bundle(folder / "unguided", folder / "corpus", **TRAINING)
    assert error_rate(folder, "unguided", capsys) > 0.4


def test_translations_come_with_their_alignments(folder: Path, tmp_path: Path) -> None:
    files = [f"{folder}/src", "--output", f"{tmp_path}/out", "--alignments", f"{tmp_path}/found"]
    assert main(["translate", f"{folder}/guided", *files]) == 0
    outputs, found = ((tmp_path / name).read_text().splitlines() for name in ("out", "found"))
    sources = (folder / "src").read_text().splitlines()
    assert len(found) == len(outputs) == held_out(folder)
    for source, output, line in zip(sources, outputs, found, strict=True):
        links = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert {target for _, target in links} == set(range(len(output.split())))
        assert all(0 <= number < len(source.split()) for number, _ in links)


def test_empty_and_long_lines_get_no_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("The old\u00a0dog\n\nsees\n" + "the " * 50 + "\n")
    (tmp_path / "tgt").write_text("Der alte Hund\nder\n\nder\n")
    files = ["--src", f"{tmp_path}/src", "--tgt", f"{tmp_path}/tgt", "--max-tokens", "20"]
    assert main(["align", f"{folder}/guided", *files, "--output", f"{tmp_path}/found"]) == 0
    first, *others = (tmp_path / "found").read_text().splitlines()
    assert {link.split("-")[1] for link in first.split()} == {"0", "1", "2"}
    assert others == ["", "", ""]


def test_what_cannot_be_aligned_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["translate", f"{folder}/guided", f"{folder}/src", "--alignments", f"{tmp_path}/found"]
    assert main([*given, "--output", f"{tmp_path}/out", "--resume"]) == 2
    assert "use `dst align` afterwards" in capsys.readouterr().err
    assert not (tmp_path / "found").exists()


def test_a_reference_that_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (folder / "alignments").read_text().splitlines()
    (tmp_path / "gold").write_text("\n".join([*lines[:-1], "0-0 0p99"]))
    given = [f"--reference={tmp_path}/gold", f"--output={tmp_path}/found"]
    capsys.readouterr()
    assert align(folder, "guided", *given) == 2
    assert f"gold, line {len(lines)}, column 5: 0p99 names word 99 of the target" in capsys.readouterr().err
    assert align(folder, "guided", given[0], "--output=-") == 2
    assert "name a file as --output" in capsys.readouterr().err
    assert not (tmp_path / "found").exists()


def test_a_model_of_several_directions_is_refused(folder: Path) -> None:
    directions = Direction("en", "de", ">>deu<<"), Direction("de", "en", ">>eng<<")
    bundle = replace(open_bundle(folder / "guided"), directions=directions)
    with pytest.raises(DataError, match="translates in several directions: name the bundle of a model of one"):
        Aligner.load(bundle)
