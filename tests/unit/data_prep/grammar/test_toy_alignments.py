"""The grammar's alignments in a corpus, and as the reference of its held-out text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.data.prep import build, refuses

from data_prep.cli import main
from data_prep.grammar.grammar import toy_splits
from data_prep.recipe.options import ToyOptions
from dstransformer.data import Corpus
from dstransformer.data.alignment import parse_reference, words_of_pieces

SIZES = ["--source", "toy", "--pairs", "60", "--valid-size", "5", "--test-size", "7", "--vocab-size", "400"]


def test_the_option_does_not_change_what_other_corpora_record() -> None:
    assert ToyOptions().record() == ToyOptions(aligned=False).record()
    assert "aligned" not in ToyOptions().record()
    assert ToyOptions(aligned=True).record() == ToyOptions().record() | {"aligned": True}


def write_reference(corpus: Path, *options: str) -> int:
    return main(
        ["text", str(corpus), *(f"--{name}={corpus.parent / name}" for name in ("src", "tgt", "alignments")), *options]
    )


def test_sure_links_are_stored_and_the_reference_is_written(tmp_path: Path) -> None:
    """From German to English, so that the links are turned round."""
    options = [*SIZES, "--src-lang", "de", "--tgt-lang", "en", "--aligned"]
    assert build(*options, "--out", tmp_path / "corpus") == 0
    splits = toy_splits(60, 1, 5, 7, aligned=True)
    corpus = Corpus.open(tmp_path / "corpus")
    for sentences in zip(*(pair[:2] for pair in splits["train"]), strict=True):
        for words in words_of_pieces(corpus.tokenizer, sentences):
            assert set(words) == set(range(max(words) + 1))  # pieces spell one word each: links are as they were
    wanted = [pair.alignment.swapped() for pair in splits["train"]]
    links, counts = corpus.split("train").gather_links(np.arange(60))
    assert counts.tolist() == [len(one.sure) for one in wanted]
    assert list(map(tuple, links.tolist())) == [link for one in wanted for link in one.sure]
    assert write_reference(tmp_path / "corpus") == 0
    found = [(tmp_path / name).read_text().splitlines() for name in ("src", "tgt", "alignments")]
    for pair, src, tgt, line in zip(splits["test"], *found, strict=True):
        assert (src, tgt) == (pair.german, pair.english)
        assert parse_reference(line, (len(src.split()), len(tgt.split())), "") == pair.alignment.swapped()


def test_text_that_the_grammar_did_not_draw_has_no_reference(
    tmp_path: Path, toy_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus").symlink_to(toy_corpus)
    assert write_reference(tmp_path / "corpus", "--split", "validation") == 0
    assert len((tmp_path / "alignments").read_text().splitlines()) == 40
    assert "exists" in refuses(capsys, write_reference(tmp_path / "corpus", "--split", "validation"))
    both = refuses(capsys, write_reference(tmp_path / "corpus", "--overwrite", f"--tgt={tmp_path}/alignments"))
    assert "--tgt and --alignments are both" in both
    (tmp_path / "copy").mkdir()
    for path in toy_corpus.iterdir():
        if path.name != "manifest.json":
            (tmp_path / "copy" / path.name).symlink_to(path)
    manifest = json.loads((toy_corpus / "manifest.json").read_text())
    for change, message in (
        ({"options": manifest["options"] | {"seed": 2}}, "has other sentences than the grammar of this version draws"),
        ({"options": manifest["options"] | {"source": "files"}}, "is not of --source toy alone"),
    ):
        (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest | change))
        assert message in refuses(capsys, write_reference(tmp_path / "copy", "--overwrite"))
