"""Corpora of several directions: tags, rules by language, held-out sets for each direction."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.data.prep import ENGLISH, GERMAN, build, contents, refuses, sentence

from data_prep.cli import main
from dstransformer.data import Corpus, Direction

RUSSIAN = "старый новый красный дом кот собака видит одна"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """English to German and Russian, and German to English."""
    for code, words in (("en", ENGLISH), ("de", GERMAN), ("ru", RUSSIAN)):
        lines = [sentence(number, words) for number in range(130)]
        (tmp_path / f"train.{code}").write_text("\n".join(lines[:120]) + "\n", encoding="utf-8")
        (tmp_path / f"dev.{code}").write_text("\n".join(lines[120:]) + "\n", encoding="utf-8")
    sources = {
        f"{src}-{tgt}": {
            "source": "files", "src_lang": src, "tgt_lang": tgt, "tag": tag, "src": f"train.{src}",
            "tgt": f"train.{tgt}", "valid_src": f"dev.{src}", "valid_tgt": f"dev.{tgt}",
        }
        for src, tgt, tag in (("en", "de", ">>deu<<"), ("en", "ru", ">>rus<<"), ("de", "en", ">>eng<<"))
    }  # fmt: skip
    path = tmp_path / "several.yaml"
    path.write_text(yaml.safe_dump({"sources": sources, "vocab": {"vocab_size": 420}}, sort_keys=False))
    return path


def change(recipe: Path, name: str, **keys: object) -> None:
    content = yaml.safe_load(recipe.read_text())
    content["sources"][name] = {k: v for k, v in (content["sources"][name] | keys).items() if v is not None}
    recipe.write_text(yaml.safe_dump(content, sort_keys=False))


def test_a_corpus_of_several_directions_says_which(recipe: Path, tmp_path: Path) -> None:
    assert build(recipe, "--out", tmp_path / "corpus") == 0
    corpus = Corpus.open(tmp_path / "corpus")
    manifest = corpus.manifest
    assert (manifest.src_lang, manifest.tgt_lang) == ("mul", "mul")
    assert manifest.directions == (
        Direction("en", "de", ">>deu<<"), Direction("en", "ru", ">>rus<<"), Direction("de", "en", ">>eng<<"),
    )  # fmt: skip
    validation = corpus.split("validation")
    assert validation.directions == {"en-de": range(10), "en-ru": range(10, 20), "de-en": range(20, 30)}
    assert [text.split()[0] for text in validation.src_texts()[::10]] == [">>deu<<", ">>rus<<", ">>eng<<"]
    symbols = corpus.tokenizer.symbols
    for tag in (">>deu<<", ">>rus<<", ">>eng<<"):
        assert corpus.tokenizer.encode([f"{tag} a"])[0][0] == symbols[f"▁{tag}"]
    assert main(["verify", str(tmp_path / "corpus")]) == 0
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "corpus"), "--out", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    assert '<p class="soft">en-de, en-ru, de-en · ' in html
    assert '<th class="n">source tokens</th><th class="n">target tokens</th>' in html
    assert [
        html.count(f"<p>{side}, in {unit}</p>") for side in ("source", "target") for unit in ("tokens", "words")
    ] == ([1] * 4)


def test_workers_and_stages_make_the_same_corpus(recipe: Path, tmp_path: Path) -> None:
    assert build(recipe, "--out", tmp_path / "one") == 0
    assert main(["build", str(recipe), "--workers", "3", "--out", str(tmp_path / "three")]) == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


def test_each_direction_is_cleaned_by_its_own_languages(recipe: Path, tmp_path: Path) -> None:
    assert build(recipe, "--out", tmp_path / "corpus", "--set", "clean.min_script=0.9") == 0
    assert [part.pairs for part in Corpus.open(tmp_path / "corpus").manifest.parts] == [120, 120, 120]
    change(recipe, "en-ru", tgt="train.de")
    assert build(recipe, "--out", tmp_path / "other", "--set", "clean.min_script=0.9") == 0
    parts = Corpus.open(tmp_path / "other").manifest.parts
    assert [(part.dropped or {})["script"] for part in parts] == [0, 120, 0]


def test_held_out_sets_may_come_from_the_training_text(recipe: Path, tmp_path: Path) -> None:
    change(recipe, "en-de", valid_src=None, valid_tgt=None, valid_size=7)
    change(recipe, "de-en", valid_src=None, valid_tgt=None, valid_size=5, test_size=4)
    assert build(recipe, "--out", tmp_path / "corpus") == 0
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.manifest.splits["validation"].directions == {"en-ru": 10, "en-de": 7, "de-en": 5}
    assert corpus.manifest.splits["test"].directions == {"de-en": 4}
    tags = [text.split()[0] for text in corpus.split("validation").src_texts()]
    assert tags == [">>rus<<"] * 10 + [">>deu<<"] * 7 + [">>eng<<"] * 5
    assert main(["verify", str(tmp_path / "corpus")]) == 0


def test_the_sources_of_a_direction_share_a_held_out_set(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(recipe.read_text())
    content["sources"]["more"] = content["sources"]["en-de"]
    recipe.write_text(yaml.safe_dump(content, sort_keys=False))
    line = refuses(capsys, build(recipe, "--out", tmp_path / "corpus"))
    assert "'en-de' and 'more' both have a validation set, and a corpus has one for each direction: set sources" in line


def test_a_target_language_needs_its_own_tag(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tag, has in ((">>deu<<", "the tag >>deu<<"), (None, "no tag")):
        change(recipe, "en-de", tag=tag)
        change(recipe, "en-ru", tag=tag)
        line = refuses(capsys, build(recipe, "--out", tmp_path / "corpus"))
        assert f"'en-de' and 'en-ru' have {has}, but translate into de and ru: give each target language" in line
