"""Recipes in YAML: several sources in one corpus, with tags and weights; inheritance, overrides, and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from support.data.prep import ENGLISH, GERMAN, build, refuses, sentence

from data_prep.cli import main
from data_prep.recipe.names import Address
from data_prep.recipe.options import FilesOptions
from data_prep.recipe.recipe import load_recipe, recipe_summaries
from dstransformer.data import Corpus
from dstransformer.data.mixture import build_mixture
from dstransformer.errors import ConfigError

RECIPE = """
src_lang: en
tgt_lang: de
sources:
  parallel: {source: files, src: a.en, tgt: a.de, valid_src: v.en, valid_tgt: v.de, weight: 2}
  back: {source: files, src: b.en, tgt: b.de, tag: <bt>, weight: 0.5}
vocab: {vocab_size: 350}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of 100 parallel and 300 back-translated pairs, of which 50 are parallel ones."""
    folder = tmp_path / "text"
    folder.mkdir()
    for name, numbers in (("a", range(100)), ("b", range(50, 350)), ("v", range(400, 410))):
        for side, words in (("en", ENGLISH), ("de", GERMAN)):
            lines = "".join(sentence(number, words) + "\n" for number in numbers)
            (folder / f"{name}.{side}").write_text(lines)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


def test_sources_follow_each_other_with_their_tags(tmp_path: Path, recipe: Path) -> None:
    assert build(recipe, "--out", tmp_path / "corpus") == 0
    corpus = Corpus.open(tmp_path / "corpus")
    parts = {part.name: (part.read, part.pairs, part.weight, part.tag) for part in corpus.manifest.parts}
    assert parts == {"parallel": (100, 100, 2.0, None), "back": (300, 250, 0.5, "<bt>")}
    assert [source.inputs[0].name for source in corpus.manifest.sources] == ["a.en", "b.en"]
    assert corpus.manifest.options["sources.back.tag"] == "<bt>"
    assert corpus.manifest.command == "dst-prep build recipe.yaml"
    split = corpus.split("train")
    tag = corpus.tokenizer.symbols["\u2581<bt>"]
    for rows, tagged in ((np.arange(100), False), (np.arange(100, 350), True)):
        src, lengths, *_ = split.gather(rows)
        firsts = src[np.cumsum(lengths) - lengths]
        assert set((firsts == tag).tolist()) == {tagged}
        assert (src == tag).sum() == (len(rows) if tagged else 0)
    assert corpus.split("validation").src_texts()[0] == sentence(400, ENGLISH)
    mixture = build_mixture(corpus.manifest.parts, [])
    assert mixture is not None
    assert len(mixture.rows(1, 0)) == 200 + 125


def test_a_source_of_which_nothing_is_left_causes_a_warning(
    tmp_path: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = recipe.rename(recipe.with_name("my recipe.yaml"))
    again = [f"sources.back.{side}={recipe.parent}/a.{language}" for side, language in (("src", "en"), ("tgt", "de"))]
    assert build(named, "--out", tmp_path / "corpus", "--set", *again) == 0
    assert Corpus.open(tmp_path / "corpus").manifest.command.startswith("dst-prep build 'my recipe.yaml' --set ")
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert warnings == 2 * ["warning: no training pair of the source 'back' is left: duplicate dropped 100"]


def test_the_same_recipe_makes_the_same_bytes_from_any_folder(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(recipe, "--out", tmp_path / "corpus") == 0
    monkeypatch.chdir(recipe.parent)
    assert build("--out", tmp_path / "corpus", "recipe.yaml") == 0, "the recipe may also follow options"
    assert "already built" in capsys.readouterr().err
    status = build(recipe, "--out", tmp_path / "corpus", "--set", "sources.back.tag=<other>")
    assert "built from other inputs" in refuses(capsys, status)


def test_a_held_out_set_of_a_tagged_source_has_the_tag(tmp_path: Path, recipe: Path) -> None:
    changes = ["sources.parallel.held_out=false", "sources.back.valid_size=5"]
    assert build(recipe, "--out", tmp_path / "corpus", "--set", *changes) == 0
    corpus = Corpus.open(tmp_path / "corpus")
    texts = corpus.split("validation").src_texts()
    assert len(texts) == 5
    assert all(text.startswith("<bt> ") for text in texts)
    held_out = {text.removeprefix("<bt> ") for text in texts}
    assert not held_out & {sentence(number, ENGLISH) for number in range(50)}, "held out of that source only"
    ids = corpus.tokenizer.encode(texts)
    src, lengths, *_ = corpus.split("validation").gather(np.arange(5))
    assert np.concatenate(ids).tolist() == src.tolist(), "text with a tag is encoded alike when it is translated"
    assert lengths.tolist() == list(map(len, ids))


def test_symbols_are_pieces_beside_tags(tmp_path: Path, recipe: Path) -> None:
    assert build(recipe, "--out", tmp_path / "corpus", "--set", "vocab.symbols=[<bt>, th]") == 0
    corpus = Corpus.open(tmp_path / "corpus")
    assert set(corpus.tokenizer.symbols) == {"\u2581<bt>", "<bt>", "th"}
    assert corpus.manifest.options["symbols"] == "<bt> th"
    src, lengths, *_ = corpus.split("train").gather(np.arange(100, 350))
    assert set(src[np.cumsum(lengths) - lengths]) == {corpus.tokenizer.symbols["\u2581<bt>"]}


def test_a_recipe_extends_another(tmp_path: Path, recipe: Path) -> None:
    more = recipe.parent / "sub" / "more.yaml"
    more.parent.mkdir()
    more.write_text("extends: ../recipe.yaml\nsources:\n  back: {weight: 3}\n  third: {source: files, train: x.tsv}\n")
    loaded = load_recipe(str(more), ["clean.dedup=false"])
    assert list(loaded.sources) == ["parallel", "back", "third"]
    back, third = loaded.sources["back"], loaded.sources["third"]
    assert (back.weight, back.tag, loaded.clean.dedup) == (3.0, "<bt>", False)
    assert isinstance(back, FilesOptions)
    assert isinstance(third, FilesOptions)
    assert back.src == (recipe.parent / "sub" / ".." / "b.en",)
    assert third.train == (recipe.parent / "sub" / "x.tsv",)
    more.write_text("extends: more.yaml\n")
    with pytest.raises(ConfigError, match="extends itself"):
        load_recipe(str(more))


def test_the_recipes_of_the_package_load(capsys: pytest.CaptureFixture[str]) -> None:
    needed = {
        "files": ["src_lang=en", "tgt_lang=de", "sources.files.train=a.tsv"],
        "trees": ["sources.trees.trees=wsj"],
    }
    for name, summary in recipe_summaries().items():
        assert load_recipe(name, ["root=.", *needed.get(name, [])]).sources
        assert summary.endswith(".")
    vocab = load_recipe("wmt14_en_fr").vocab
    assert (vocab.vocab_size, vocab.tokenizer, vocab.character_coverage) == (32_000, "unigram", 0.9998)
    assert main(["recipes"]) == 0
    assert "wmt14_en_de" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": {"back": {"wieght": 2}}}, "unknown key 'sources.back.wieght', did you mean 'weight'?"),
        ({"sources": {"back": {"weight": -1}}}, "sources.back.weight = -1: input should be greater than"),
        ({"vocab": {"symbols": "<ph1>"}}, "vocab.symbols = '<ph1>': write a list, such as [<ph1>, <ph2>]"),
        ({"vocab": {"symbols": ["<a>", "<a>"]}}, "the symbol '<a>' is given twice"),
        ({"vocab": {"symbols": ["<a>", 3]}}, "vocab.symbols.1 = 3: input should be a valid string"),
        ({"vocab": {"symbols": ["ﬁ"]}}, "--symbols ﬁ: cleaning normalises the text (NFKC), and writes 'fi'"),
        ({"sources": {"back": {"tag": "<s>"}}}, "'<s>' is not a tag such as <bt>"),
        *(
            ({"sources": {"back": {"tag": tag}}}, "is not a tag such as <bt>")
            for tag in ("bt", "deu<<", ">><<", ">>d eu<<", "<<deu>>")
        ),
        ({"sources": {"back": {"source": "fils"}}}, "sources.back.source = 'fils': choose one of toy, files"),
        ({"sources": {"x": {}}}, "missing key 'sources.x.source'"),
        ({"sources": {"a b": {"source": "toy"}}}, "'a b' is not a name"),
        ({"tgt_lang": False}, "sources.parallel.tgt_lang = False: an unquoted no, off, yes or on is not text in YAML"),
        (
            {"tgt_lang": "jp"},
            "sources.parallel.tgt_lang = 'jp': 'jp' is not a language code (--any-language, in a recipe any_language: "
            "true, takes any): did you mean ja?",
        ),
        ({"tgt_lang": "jp", "any_language": 3}, "sources.parallel.any_language = 3: input should be a valid boolean"),
        ({"sources": {"back": 3}}, "no sources: write"),
        (
            {"sources": {"x": {"source": "toy", "tgt_lang": "fr"}}},
            "the sources 'parallel' and 'x' have no tag, but translate into de and fr: give each target",
        ),
        ({"sources": {"back": {"valid_size": 3}}}, "'parallel' and 'back' both have a validation set"),
        ({"clean": {"dedupp": True}}, "unknown key 'clean.dedupp', did you mean 'dedup'?"),
        ({"clean": 3}, "clean = 3: it is a section"),
        ({"vocabulary": {}}, "unknown key 'vocabulary', did you mean 'vocab'?"),
        ({"extends": "wmt14"}, "unknown recipe 'wmt14'"),
    ],
)
def test_mistakes_in_a_recipe_are_named(
    tmp_path: Path, recipe: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], message: str
) -> None:
    wrong = recipe.with_name("wrong.yaml")
    wrong.write_text(yaml.safe_dump({"extends": "recipe.yaml"} | change))
    assert message in refuses(capsys, build(wrong, "--out", tmp_path / "corpus"))
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toy", "--source", "files"], "--source and the recipe toy do not go together"),
        (["toi"], "unknown recipe 'toi': did you mean 'toy'?"),
        (["none.yaml"], "recipe 'none.yaml' is not a file"),
        (["--set", "a=1"], "--set a=1 needs a recipe"),
        ([], "no recipe and no --source"),
        (["toy", "--set", "sources.toi.pairs=3"], "there is no source 'toi', did you mean 'toy'?"),
        (["toy", "--set", "sources.toy=3"], "is not of the form"),
        (["toy", "--set", "pairs=3"], "there is no key 'pairs'"),
    ],
)
def test_mistakes_on_the_command_line_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refuses(capsys, build("--out", tmp_path / "corpus", *words))


def test_any_language_is_taken_for_all_sources_or_one(recipe: Path) -> None:
    every = load_recipe(str(recipe), ["tgt_lang=jp", "any_language=true"])
    assert {(source.tgt_lang, source.any_language) for source in every.sources.values()} == {("jp", True)}
    one = ["sources.back.tgt_lang=x-elvish", "sources.parallel.tgt_lang=jp", "sources.parallel.any_language=true"]
    assert load_recipe(str(recipe), one).sources["back"].tgt_lang == "x-elvish"


def test_lists_and_addresses_keep_their_places(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    source = "src_lang: en\ntgt_lang: de\nsources: {a: {source: files, train: [x.tsv, /y.tsv, 's3://b/z.tsv']}}\n"
    path.write_text(source)
    loaded = load_recipe(str(path)).sources["a"]
    assert isinstance(loaded, FilesOptions)
    assert loaded.train == (tmp_path / "x.tsv", Path("/y.tsv"), Address("s3://b/z.tsv"))
    path.write_text(f"root: https://host/folder/\n{source}")
    loaded = load_recipe(str(path), ["sources.a.valid=[v.tsv]"]).sources["a"]
    assert isinstance(loaded, FilesOptions)
    assert loaded.train == (Address("https://host/folder/x.tsv"), Path("/y.tsv"), Address("s3://b/z.tsv"))
    assert loaded.valid == (Path("v.tsv"),)
    with pytest.raises(ConfigError, match=r"sources\.a\.train .*file://"):
        load_recipe(str(path), ["sources.a.train=file:///x.tsv"])
    with pytest.raises(ConfigError, match=r"sources\.a\.train .*@h/x"):
        load_recipe(str(path), ['sources.a.train="https://a:b@h/x\\n"'])
