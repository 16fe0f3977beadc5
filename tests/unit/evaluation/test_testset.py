from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dstransformer.errors import DataError, UserError
from dstransformer.evaluation.bleu import score_translations
from dstransformer.evaluation.testset import TestSet, read_test_set, read_test_sets


@pytest.fixture
def src(tmp_path: Path) -> str:
    (tmp_path / "src").write_text("a dog runs over there\n\nthe fox does not run\n", encoding="utf-8")
    return str(tmp_path / "src")


def test_translations_of_a_test_set_are_scored(src: str, tmp_path: Path) -> None:
    ref = tmp_path / "ref.gz"
    ref.write_bytes(gzip.compress(b"A DOG RUNS OVER THERE\n\nTHE FOX DOES NOT RUN\n"))
    test_set = read_test_set("set", src, str(ref))
    assert test_set.sources is not None
    report = score_translations([sentence.upper() for sentence in test_set.sources], test_set.references, None)
    assert report.sentences == 3
    assert [(entry.name, round(entry.value, 6)) for entry in report.scores] == [
        ("bleu", 100.0),
        ("chrf", 100.0),
        ("ter", 0.0),
    ]
    assert str(report.main) == f"BLEU 100.00 ({report.main.signature})"
    assert json.loads(json.dumps(report.to_json())) == {
        "sentences": 3,
        "seconds": report.seconds,
        "metrics": {"bleu": report.main.value, "chrf": report.scores[1].value, "ter": 0.0},
        "signatures": {score.name: score.signature for score in report.scores},
    }


def test_compound_split_bleu_is_reported_if_the_language_is_known(src: str) -> None:
    sentences = Path(src).read_text(encoding="utf-8").splitlines()
    report = score_translations([sentence.upper() for sentence in sentences], sentences, "de")
    assert [entry.label for entry in report.scores] == ["BLEU", "chrF2", "TER", "BLEU (compound-split)"]
    assert report.scores[0].value < 1


def test_a_source_given_as_its_own_reference_is_refused(src: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(src)
    for ref in (src, str(tmp_path / "link")):
        with pytest.raises(UserError, match=f"--src and --ref .*{ref}"):
            read_test_set("set", src, ref)
    with pytest.raises(DataError, match="standard input"):
        read_test_set("set", src, "-")


@pytest.mark.parametrize(("sources", "references", "empty"), [
    (("a", "b", "c", "d"), ("e", "", "g", " "), "2 of 4 references of ref"),
    (("a", "", "c", ""), ("e", "f", "g", ""), "1 of 4 sources of src"),
    (("", "b", "c"), ("e", "", ""), "1 of 3 sources of src and 2 of 3 references of ref"),
    (None, ("e", "", "g"), "1 of 3 references of ref"),
    (("a", "", "\u200d"), ("e", "\u3000", "\u2800"), None),
])  # fmt: skip
def test_sentences_without_a_translation_cause_a_warning(
    sources: tuple[str, ...] | None, references: tuple[str, ...], empty: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    TestSet("set", sources, references, "src", "ref")
    wanted = [] if empty is None else [f"{empty} are empty: scores count them as errors; leave these sentences out"]
    assert [record.message for record in caplog.records if record.name.startswith("dstransformer")] == wanted


@pytest.mark.parametrize(("src", "ref", "side"), [
    ("a\nb\n", "\n \n", "references of .*ref"),
    ("\n \n", "a\nb\n", "sources of .*src"),
])  # fmt: skip
def test_a_test_set_with_an_empty_side_is_refused(tmp_path: Path, src: str, ref: str, side: str) -> None:
    paths = [str(tmp_path / name) for name in ("src", "ref")]
    for path, content in zip(paths, (src, ref), strict=True):
        Path(path).write_text(content)
    with pytest.raises(DataError, match=f"all 2 {side}"):
        read_test_sets(paths[:1], paths[1:])


def test_translations_that_are_all_empty_cause_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    score_translations(["", " "], ["ein", "zwei"], None)
    assert "every line of the translation is empty: the scores are meaningless" in caplog.text


def test_sides_of_different_lengths_are_refused(src: str, tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"src has 3 .*ref has 2"):
        read_test_set("set", src, str(tmp_path / "ref"))
