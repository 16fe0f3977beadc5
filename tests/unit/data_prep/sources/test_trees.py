"""The source ``trees``: splits, symbols, phrases, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.data.prep import build, refuses
from support.data.trees import write_treebank

from data_prep.cli import main
from data_prep.sources.trees import phrases
from dstransformer.data import UNK_ID, Corpus
from dstransformer.data.plan import Position
from dstransformer.data.subwords import BpeDropout
from dstransformer.extras.parsing.linearise import Linearisation
from dstransformer.extras.parsing.trees import parse_tree

SIZE = ("--vocab-size", "330")


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    return write_treebank(tmp_path / "wsj")


def build_trees(tmp_path: Path, *options: str | Path) -> Corpus:
    size = () if "--vocab-size" in options else SIZE
    assert build("--source", "trees", "--out", tmp_path / "corpus", *size, *options) == 0
    return Corpus.open(tmp_path / "corpus")


def symbols_of(corpus: Corpus, split: str, row: int) -> list[str]:
    *_, ids, _ = corpus.split(split).gather([row])  # type: ignore[arg-type]
    return corpus.tokenizer.pieces(ids.tolist())


def test_the_target_side_is_the_symbols_of_the_tree(tmp_path: Path, treebank: Path) -> None:
    corpus = build_trees(tmp_path, "--trees", treebank, "--splits", "files:0.1,0.2")
    assert {name: len(corpus.split(name)) for name in corpus.splits} == {"train": 140, "validation": 20, "test": 40}
    assert corpus.manifest.form == Linearisation()
    assert (corpus.manifest.src_lang, corpus.manifest.tgt_lang) == ("en", "tree")
    split = corpus.split("test")
    for row, (sentence, text) in enumerate(zip(split.src_texts(), split.tgt_texts(), strict=True)):
        tree = parse_tree(text)
        assert tree.words() == sentence.split()
        assert "NONE" not in text
        assert "SBJ" not in text
        assert symbols_of(corpus, "test", row) == Linearisation().write(tree)


@pytest.mark.parametrize(("tags", "closing", "written"), [
    ("xx", "label", {"(XX)", "(NP", ")NP"}),
    ("keep", "bare", {"(DT)", "(NP", ")"}),
])  # fmt: skip
def test_the_recipe_says_how_trees_are_written(
    tmp_path: Path, treebank: Path, tags: Any, closing: Any, written: set[str]
) -> None:
    corpus = build_trees(
        tmp_path, "--trees", treebank, "--splits", "random:0.1,0.1", "--tags", tags, "--closing", closing
    )
    assert corpus.manifest.form == Linearisation(tags, closing)
    assert written <= set(symbols_of(corpus, "validation", 0))
    # The raw text keeps the tags, from which a parser is scored.
    assert "(DT " in corpus.split("validation").tgt_texts()[0]


def test_the_sections_of_the_treebank_are_found_by_name(tmp_path: Path) -> None:
    for section in (0, 2, 21, 22, 23, 24):
        write_treebank(tmp_path / "wsj" / f"{section:02}", files=1, per_file=section + 1, section=section)
    corpus = build_trees(tmp_path, "--trees", tmp_path / "wsj")
    assert {name: len(corpus.split(name)) for name in corpus.splits} == {"train": 25, "validation": 23, "test": 24}


@pytest.mark.parametrize("kind", ["files", "random"])
def test_the_share_that_other_trees_replace_is_training_text(tmp_path: Path, treebank: Path, kind: str) -> None:
    held_out = write_treebank(tmp_path / "held_out", files=1)
    corpus = build_trees(tmp_path, "--trees", treebank, "--splits", f"{kind}:0.5,0.2", "--valid-trees", held_out)
    sizes = {name: len(corpus.split(name)) for name in corpus.splits}
    assert sizes["validation"] == 10
    assert sizes["train"] + sizes["test"] == 200
    assert sizes["train"] > 100


def test_random_splits_are_disjoint_and_repeatable(tmp_path: Path, treebank: Path) -> None:
    options = ("--trees", treebank, "--splits", "random:0.2,0.2", "--seed", "7")
    corpus = build_trees(tmp_path, *options)
    sizes = [len(corpus.split(name)) for name in corpus.splits]
    assert sum(sizes) == 200
    assert min(sizes) > 10
    again = tmp_path / "again"
    again.mkdir()
    assert build_trees(again, *options).manifest.splits == corpus.manifest.splits


def test_machine_trees_are_added_to_the_repeated_treebank(tmp_path: Path, treebank: Path) -> None:
    write_treebank(tmp_path / "machine", files=3)
    held_out = write_treebank(tmp_path / "held_out", files=1)
    corpus = build_trees(
        tmp_path, "--trees", treebank, "--splits", "none", "--valid-trees", held_out, "--repeat", "3",
        "--machine-trees", tmp_path / "machine",
    )  # fmt: skip
    assert {name: len(corpus.split(name)) for name in corpus.splits} == {"train": 630, "validation": 10}
    assert len(corpus.manifest.sources[0].inputs) == 24


def test_phrases_are_those_with_siblings() -> None:
    tree = parse_tree("(TOP (S (NP (NP (DT a) (NN b)) (PP (IN c) (NP (DT d) (NN e)))) (VP (VP (VB f) (RB g))) (. h)))")
    found = [str(phrase.children[0]) for phrase in phrases(tree, 3)]
    assert found == [
        "(NP (DT a) (NN b))",
        "(PP (IN c) (NP (DT d) (NN e)))",
        "(NP (DT d) (NN e))",
        "(VP (VP (VB f) (RB g)))",
    ]
    assert len(list(phrases(tree, 5))) == 5


def test_a_symbol_that_training_does_not_have_is_unknown(tmp_path: Path, treebank: Path) -> None:
    held_out = tmp_path / "dev.mrg"
    held_out.write_text("(S (NP (DT a) (FW cat)) (. .))")
    corpus = build_trees(tmp_path, "--trees", treebank, "--splits", "none", "--valid-trees", held_out)
    *_, ids, _ = corpus.split("validation").gather([0])  # type: ignore[arg-type]
    assert ids.tolist().count(UNK_ID) == 1


@pytest.mark.parametrize(("options", "message"), [
    (["--trees", "nowhere"], "nowhere does not exist"),
    ([], "--trees is missing: name a treebank"),
    (["--trees", "wsj"], "--splits wsj needs sections 02 to 21 for train, but wsj has only sections 00"),
    (["--trees", "wsj", "--splits", "files:0.01,0.1"], "files:0.01,0.1 leaves no file for validation: wsj has 20"),
    (["--trees", "wsj", "--splits", "half"], "'half' is none of wsj, files:DEV,TEST"),
    (["--trees", "wsj", "--splits", "random:0.5,0.6"], "'random:0.5,0.6' is none of wsj"),
    (["--trees", "wsj", "--splits", "random:0.1,0.1,0.1"], "'random:0.1,0.1,0.1' is none of wsj"),
    (["--trees", "wsj", "--splits", "random:0.5"], "'random:0.5' is none of wsj"),
    (["--trees", "broken.mrg", "--splits", "none"], "broken.mrg, line 2: this bracket is never closed"),
    (["--trees", "wsj", "--splits", "files:0.1,0.1", "--normalise", "nfkc"], "--normalise nfkc would change the words"),
])  # fmt: skip
def test_bad_treebanks_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_treebank(tmp_path / "wsj", section=0)
    Path("broken.mrg").write_text("(S (NN a))\n(S (NP (NN b))")
    status = main(["build", "--source", "trees", "--out", "corpus", *SIZE, "--workers", "1", *options])
    assert message in refuses(capsys, status)
    assert not Path("corpus").exists()


def test_another_tokenizer_must_have_the_symbols(
    tmp_path: Path, treebank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_trees(tmp_path, "--trees", treebank, "--splits", "files:0.1,0.1")
    model = tmp_path / "corpus" / "tokenizer.model"
    other = tmp_path / "other.mrg"
    other.write_text("(S (XP (DT a) (NN cat)) (. .))\n" * 3)
    capsys.readouterr()
    status = build(
        "--source", "trees", "--trees", other, "--splits", "none", "--valid-trees", other, "--out", tmp_path / "second",
        "--tokenizer-model", model,
    )  # fmt: skip
    assert "has no piece '(XP', with which these trees are written" in refuses(capsys, status)


def test_numbered_words_have_one_piece_on_both_sides(tmp_path: Path, treebank: Path) -> None:
    corpus = build_trees(
        tmp_path, "--trees", treebank, "--splits", "files:0.1,0.1", "--tags", "numbered", "--vocab-size", "430"
    )
    src, _, tgt, _ = corpus.split("test").gather([0])  # type: ignore[arg-type]
    numbers = {corpus.tokenizer.symbols[f"▁#{place:02}"] for place in range(100)}
    words = len(corpus.split("test").src_texts()[0].split())
    ours = [[token for token in side.tolist() if token in numbers] for side in (src, tgt)]
    assert ours[0] == ours[1] == [corpus.tokenizer.symbols[f"▁#{place:02}"] for place in range(words)]
    plain = corpus.split("train").gather(range(50))  # type: ignore[arg-type]
    pairs = BpeDropout(corpus.tokenizer, 0.5, 1, None).sample(plain, Position(), 0)
    assert len(pairs.src_ids) > len(plain.src_ids)
    assert pairs.tgt_ids.tolist() == plain.tgt_ids.tolist()


def test_the_role_of_each_file_is_recorded(tmp_path: Path, treebank: Path) -> None:
    corpus = build_trees(tmp_path, "--trees", treebank, "--splits", "none", "--valid-trees", treebank / "wsj_0000.mrg")
    names = [file.name for file in corpus.manifest.sources[0].inputs]
    assert names[0] == "treebank/wsj_0000.mrg"
    assert names[-1] == "validation/wsj_0000.mrg"
