"""The embedded grammar as a source: its splits, its alignments in a corpus, and as the reference of held-out text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.data.prep import build, refuses

from data_prep.cli import main
from data_prep.recipe.options import ToyOptions
from data_prep.sources.toy import toy_splits
from dstransformer.data import Corpus
from dstransformer.data.alignment import parse_links, words_of_pieces
from dstransformer.errors import UserError

SIZES = ["--source", "toy", "--pairs", "60", "--valid-size", "5", "--test-size", "7", "--vocab-size", "400"]


def test_splits_share_no_source() -> None:
    splits = toy_splits(2_000, seed=4, validation=300, test=200)
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 2_000, "validation": 300, "test": 200}
    assert len({pair.english for pairs in splits.values() for pair in pairs}) == 2_500


def test_held_out_sets_do_not_depend_on_the_training_size() -> None:
    small, large = (toy_splits(count, seed=4, validation=30, test=20) for count in (100, 400))
    assert (small["validation"], small["test"]) == (large["validation"], large["test"])
    assert small["train"] == large["train"][:100]


@pytest.mark.parametrize(("sizes", "name"), [((0, 5, 5), "training"), ((5, 0, 5), "validation"), ((5, 5, -3), "test")])
def test_an_empty_split_is_refused(sizes: tuple[int, int, int], name: str) -> None:
    count, validation, test = sizes
    with pytest.raises(UserError, match=name):
        toy_splits(count, seed=1, validation=validation, test=test)


def test_the_option_does_not_change_what_other_corpora_record() -> None:
    assert ToyOptions().record() == ToyOptions(aligned=False).record()
    assert "aligned" not in ToyOptions().record()
    assert ToyOptions(aligned=True).record() == ToyOptions().record() | {"aligned": True}


def write_reference(corpus: Path, *options: str) -> int:
    return main(
        ["text", str(corpus), *(f"--{name}={corpus.parent / name}" for name in ("src", "tgt", "alignments")), *options]
    )


def test_links_are_stored_and_the_reference_is_written(tmp_path: Path) -> None:
    """From German to English, so that the links are turned round."""
    options = [*SIZES, "--src-lang", "de", "--tgt-lang", "en", "--aligned"]
    assert build(*options, "--out", tmp_path / "corpus") == 0
    splits = toy_splits(60, 1, 5, 7)
    corpus = Corpus.open(tmp_path / "corpus")
    for sentences in zip(*(pair[:2] for pair in splits["train"]), strict=True):
        for words in words_of_pieces(corpus.tokenizer, sentences):
            assert set(words) == set(range(max(words) + 1))  # pieces spell one word each: links are as they were
    wanted = [sorted((tgt, src) for src, tgt in pair.links) for pair in splits["train"]]
    links, counts = corpus.split("train").gather_links(np.arange(60))
    assert counts.tolist() == [len(one) for one in wanted]
    assert list(map(tuple, links.tolist())) == [link for one in wanted for link in one]
    assert write_reference(tmp_path / "corpus") == 0
    found = [(tmp_path / name).read_text().splitlines() for name in ("src", "tgt", "alignments")]
    for pair, src, tgt, line in zip(splits["test"], *found, strict=True):
        assert (src, tgt) == (pair.german, pair.english)
        assert [(b, a) for a, b in parse_links(line, (len(src.split()), len(tgt.split())), "")] == sorted(
            pair.links, key=lambda link: (link[1], link[0])
        )


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
