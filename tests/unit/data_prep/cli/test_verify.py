"""What a corpus was made from: compared with its manifest, when a build goes on, and while it is read."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.data.prep import ENGLISH, GERMAN, build, refuses, sentence, without_vocab
from support.data.trees import write_treebank

from data_prep.cli import main
from data_prep.recipe.options import TreesOptions
from data_prep.sources.opening import open_source
from dstransformer.data import Corpus, Split
from dstransformer.errors import DataError

RECIPE = """
src_lang: en
tgt_lang: de
sources:
  plain: {source: files, src: a.en, tgt: a.de, valid_size: 10}
  parts: {source: files, src: part-*.en, tgt: part-*.de, scores: scores.txt, min_score: 0.5}
  archive: {source: files, src: "c.tar::t/c.en", tgt: "c.tar::t/c.de", tag: <bt>}
vocab: {vocab_size: 350}
"""


def write_text(folder: Path) -> Path:
    """The files of a recipe, and the recipe, which extends another."""
    folder.mkdir()
    for name, numbers in (
        ("a", range(100)),
        ("part-1", range(50, 150)),
        ("part-2", range(150, 200)),
        ("c", range(300)),
    ):
        for side, words in (("en", ENGLISH), ("de", GERMAN)):
            (folder / f"{name}.{side}").write_text("".join(sentence(number, words) + "\n" for number in numbers))
    (folder / "scores.txt").write_text("".join(f"{number % 10 / 10}\n" for number in range(150)))
    with tarfile.open(folder / "c.tar", "w") as archive:
        for side in ("en", "de"):
            archive.add(folder / f"c.{side}", f"t/c.{side}")
            (folder / f"c.{side}").unlink()
    (folder / "base.yaml").write_text(RECIPE)
    (folder / "mine.yaml").write_text("extends: base.yaml\nclean: {max_words: 100}\n")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text of a recipe and the corpus that was built from it."""
    folder = tmp_path_factory.mktemp("verify")
    write_text(folder / "text")
    assert build(folder / "text" / "mine.yaml", "--out", folder / "corpus") == 0
    return folder


def test_the_counts_of_every_source_add_up(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = Corpus.open(made / "corpus").manifest
    plain, parts, archive = manifest.parts
    assert (plain.read + (plain.held_out or 0), parts.read + (parts.held_out or 0)) == (100, 150)
    assert plain.dropped is not None
    assert parts.dropped is not None
    assert archive.dropped is not None
    assert parts.dropped["score"] == manifest.cleaning.dropped["score"] > 0
    assert archive.dropped["duplicate"] > 0
    assert (
        sum(part.dropped["duplicate"] for part in manifest.parts if part.dropped)
        == (manifest.cleaning.dropped["duplicate"])
    )
    assert [recipe.name for recipe in manifest.recipes] == ["mine.yaml", "base.yaml"]
    assert main(["verify", str(made / "corpus")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == (
        f"training pairs: {manifest.cleaning.read} read = {manifest.cleaning.kept} kept + "
        f"{sum(manifest.cleaning.dropped.values())} dropped"
    )
    assert printed[2].startswith(f"  plain: {plain.read} read = {plain.pairs} kept + ")
    assert printed[2].endswith("; 10 held out before")


def test_inputs_that_are_as_recorded(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, text = str(made / "corpus"), made / "text"
    assert main(["verify", corpus, "--inputs", str(text)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "inputs: 10 of 10 files are as the manifest says"
    moved = tmp_path / "moved"
    shutil.copytree(text, moved / "below")
    (moved / "a.en").write_text("another file of this name\n")
    (moved / "below" / "c.tar").rename(tmp_path / "c.tar")
    assert main(["verify", corpus, "--inputs", str(moved), str(tmp_path / "c.tar")]) == 0


def remove(folder: Path) -> None:
    (folder / "part-2.de").unlink()


def append(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).open("a").write("1\n")


def flip(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-2] + b"x" + content[-1:])

    return change


@pytest.mark.parametrize(("change", "line"), [
    (remove, "gone: part-2.de"),
    (append("a.en"), "changed: TEXT/a.en has 1,972 bytes, the manifest says 1,970"),
    (flip("a.en"), "changed: TEXT/a.en has sha256 "),
    (flip("c.tar"), "changed: TEXT/c.tar has sha256 "),
    (append("scores.txt"), "changed: TEXT/scores.txt has 602 bytes, the manifest says 600"),
    (append("base.yaml"), "changed: TEXT/base.yaml has "),
])  # fmt: skip
def test_inputs_that_changed_or_are_gone(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], line: str
) -> None:
    text = tmp_path / "text"
    shutil.copytree(made / "text", text)
    change(text)
    status = main(["verify", str(made / "corpus"), "--inputs", str(text)])
    printed = capsys.readouterr()
    assert status == 2
    assert printed.err == (
        f"dst-prep: error: 1 of the 10 files that {made / 'corpus'} was made from changed or are gone\n"
    )
    (found,) = [one for one in printed.out.splitlines() if one.startswith(("gone", "changed"))]
    assert found.startswith(line.replace("TEXT", str(text)))
    assert printed.out.splitlines()[-1] == "inputs: 9 of 10 files are as the manifest says"


def test_given_tokenizers_of_both_languages_are_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert build(*options, "--no-joint", "--out", tmp_path / "first") == 0
    (tmp_path / "spm").mkdir()
    for language, name in (("src", "tokenizer.src.model"), ("tgt", "tokenizer.model")):
        shutil.copy(tmp_path / "first" / name, tmp_path / "spm" / f"{language}.spm")
    given = [
        "--no-joint",
        "--src-tokenizer-model",
        tmp_path / "spm/src.spm",
        "--tokenizer-model",
        tmp_path / "spm/tgt.spm",
    ]
    corpus = tmp_path / "corpus"
    assert build(*without_vocab(options), *given, "--out", corpus) == 0
    first, second = Corpus.open(tmp_path / "first"), Corpus.open(corpus)
    assert second.tokenizer.identity == first.tokenizer.identity
    rows = np.arange(20)
    for one, other in zip(first.split("train").gather(rows), second.split("train").gather(rows), strict=True):
        assert np.array_equal(one, other)
    options_of = second.manifest.options
    assert options_of["src_tokenizer_model"] == "src.spm"
    assert options_of["tokenizer_model"] == "tgt.spm"
    assert options_of["joint"] is False
    assert main(["verify", str(corpus), "--inputs", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "spm" / "src.spm").write_bytes(b"x")
    assert main(["verify", str(corpus), "--inputs", str(tmp_path)]) == 2
    assert f"changed: {tmp_path / 'spm' / 'src.spm'} has sha256 " in capsys.readouterr().out


def test_folders_that_do_not_exist_are_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["verify", str(made / "corpus"), "--inputs", "/nowhere"])
    assert "--inputs /nowhere does not exist" in refuses(capsys, status)


def test_tags_are_compared_with_the_shards(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "corpus", tmp_path / "corpus")
    path = tmp_path / "corpus" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["tag"] = "<bt>"
    path.write_text(json.dumps(manifest))
    message = refuses(capsys, main(["verify", str(tmp_path / "corpus")]))
    assert "parts: not all sentences of plain begin with its tag <bt>" in message


def test_held_out_text_is_compared_with_its_ids(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["verify", str(made / "corpus")]) == 0
    texts = Split.tgt_texts
    monkeypatch.setattr(Split, "tgt_texts", lambda split: [*texts(split)[:-1], "another sentence"])
    message = refuses(capsys, main(["verify", str(made / "corpus")]))
    assert "validation is damaged: token ids and text of the tgt side differ. Or SentencePiece" in message


def test_tags_of_separate_vocabularies(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text")
    given = ["--set", "vocab.joint=false", "vocab.vocab_size=330", "--out", tmp_path / "corpus"]
    assert build(text / "mine.yaml", *given) == 0
    corpus = Corpus.open(tmp_path / "corpus")
    tag = corpus.tokenizer.src.symbols["▁<bt>"]
    assert "▁<bt>" not in corpus.tokenizer.symbols
    begin = sum(part.pairs for part in corpus.manifest.parts[:-1])
    ids, lengths, _, _ = corpus.split("train").gather(np.arange(len(corpus.split("train"))))
    firsts = ids[np.cumsum(lengths) - lengths]
    assert (firsts[begin:] == tag).all()
    assert not (firsts[:begin] == tag).any()
    assert main(["verify", str(tmp_path / "corpus"), "--inputs", str(text)]) == 0


def add_part(folder: Path) -> None:
    for side, words in (("en", ENGLISH), ("de", GERMAN)):
        (folder / f"part-3.{side}").write_text(sentence(900, words) + "\n")
    append("scores.txt")(folder)


def drop_part(folder: Path) -> None:
    for side in ("en", "de"):
        (folder / f"part-2.{side}").unlink()
    (folder / "scores.txt").write_text("1\n" * 100)


@pytest.mark.parametrize(("change", "said"), [
    (flip("a.en"), "a.en changed"),
    (flip("c.tar"), "c.tar::t/c.de, c.tar::t/c.en changed"),
    (lambda folder: (folder / "scores.txt").write_text("0.9\n" * 150), "scores.txt changed"),
    (add_part, "scores.txt changed; part-3.de, part-3.en added"),
    (drop_part, "scores.txt changed; part-2.de, part-2.en removed"),
])  # fmt: skip
def test_a_build_that_goes_on_says_which_input_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], said: str
) -> None:
    text = write_text(tmp_path / "text")
    command = (text / "mine.yaml", "--out", tmp_path / "corpus")
    assert build(*command, "--set", "vocab.vocab_size=90000") == 2, "the stages before it are finished"
    capsys.readouterr()
    change(text)
    status = build(*command, "--set", "vocab.vocab_size=90000")
    notes = [line for line in capsys.readouterr().err.splitlines() if "reading the text again" in line]
    assert status == 2
    assert len(notes) == 1
    assert notes[0].endswith(f"reading the text again, because {said}")


def test_treebanks_that_change_while_they_are_read_end_the_build(tmp_path: Path) -> None:
    folder = write_treebank(tmp_path / "wsj")
    source = open_source(TreesOptions(trees=folder, splits="files:0.1"))
    assert source.info.inputs[0].size == (folder / "wsj_0000.mrg").stat().st_size
    (folder / "wsj_0303.mrg").write_text("(S (NN dog))\n")
    with pytest.raises(DataError, match=r"wsj_0303\.mrg"):
        list(source.splits["train"]())
