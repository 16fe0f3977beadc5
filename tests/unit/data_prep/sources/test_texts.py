"""Texts in archives and in SGM, in the layout of WMT's own files."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.data.prep import ENGLISH, FRENCH, GERMAN, build, refuses, sentence

from data_prep.sources.texts import iter_sentences, local_text
from dstransformer.data import Corpus
from dstransformer.errors import DataError


def archive(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def text(numbers: range, words: str) -> bytes:
    return "".join(sentence(number, words) + "\n" for number in numbers).encode()


def sgm(numbers: range, words: str) -> bytes:
    segments = "".join(f'<seg id="{n}"> {sentence(number, words)} </seg>\n' for n, number in enumerate(numbers, 1))
    return f'<refset trglang="x">\n<doc docid="d">\n<p>\n{segments}</p>\n</doc>\n</refset>\n'.encode()


@pytest.fixture
def wmt(tmp_path: Path) -> Path:
    """The archives of WMT 2014 with little text, names and folders as statmt.org has them."""
    folder = tmp_path / "wmt"
    folder.mkdir()
    parts = {"europarl-v7": range(100), "news-commentary-v9": range(100, 150), "commoncrawl": range(150, 200)}
    pairs = {"de": GERMAN, "fr": FRENCH}
    content = {
        part: {
            f"{part}.{lang}-en.{side}": text(numbers, words)
            for lang, foreign in pairs.items()
            for side, words in ((lang, foreign), ("en", ENGLISH))
        }
        for part, numbers in parts.items()
    }
    for name, part, inside in (
        ("europarl-v7", "europarl-v7", "training/"),
        ("nc-v9", "news-commentary-v9", "training/"),
        ("commoncrawl", "commoncrawl", ""),
    ):
        archive(
            folder / f"training-parallel-{name}.tgz", {f"{inside}{key}": data for key, data in content[part].items()}
        )
    undoc = {
        f"un/undoc.2000.fr-en.{side}": text(range(200, 250), words) for side, words in (("en", ENGLISH), ("fr", FRENCH))
    }
    archive(folder / "training-parallel-un.tgz", undoc)
    giga = {
        f"giga-fren.release2.fixed.{side}.gz": gzip.compress(text(range(250, 300), words))
        for side, words in (("en", ENGLISH), ("fr", FRENCH))
    }
    archive(folder / "training-giga-fren.tar", giga, "w")
    sides = {"en": ENGLISH, **pairs}
    archive(
        folder / "dev.tgz", {f"dev/newstest2013.{side}": text(range(300, 310), words) for side, words in sides.items()}
    )
    tests = {
        f"test-full/newstest2014-{lang}en-{role}.{side}.sgm": sgm(range(310, 320), sides[side])
        for lang in pairs
        for role in ("src", "ref")
        for side in ("en", lang)
    }
    archive(folder / "test-full.tgz", tests)
    return folder


@pytest.mark.parametrize(("recipe", "pairs", "words"), [
    ("wmt14_en_de_archives", 200, GERMAN), ("wmt14_en_fr_archives", 300, FRENCH),
])  # fmt: skip
def test_wmt14_is_built_from_its_archives(tmp_path: Path, wmt: Path, recipe: str, pairs: int, words: str) -> None:
    assert build(recipe, "--out", tmp_path / "c", "--set", f"root={wmt}", "vocab.vocab_size=320") == 0
    corpus = Corpus.open(tmp_path / "c")
    assert len(corpus.split("train")) == pairs
    assert corpus.split("validation").src_texts() == [sentence(number, ENGLISH) for number in range(300, 310)]
    assert corpus.split("test").tgt_texts() == [sentence(number, words) for number in range(310, 320)]
    names = [one.name for one in corpus.manifest.sources[0].inputs]
    assert names[0].startswith("training-parallel-europarl-v7.tgz::training/europarl-v7.")


def test_the_folder_of_the_archives_is_asked_for(tmp_path: Path, wmt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = build("wmt14_en_de_archives", "--out", tmp_path / "c")
    assert "needs the folder of its files: add --set root=FOLDER" in refuses(capsys, status)
    own = tmp_path / "own.yaml"
    own.write_text("extends: wmt14_en_de_archives\nroot: wmt\nvocab: {vocab_size: 400}\n")
    assert build(own, "--out", tmp_path / "c") == 0
    status = build("wmt14_en_de_archives", "--out", tmp_path / "d", "--set", f"root={tmp_path / 'none'}")
    assert "training-parallel-europarl-v7.tgz" in refuses(capsys, status)


def test_what_is_wrong_with_an_archive_is_named(tmp_path: Path) -> None:
    whole = archive(tmp_path / "x.tgz", {"a/x.en": text(range(999), ENGLISH), "a/y.en": b"two\n"})
    assert list(iter_sentences(local_text(Path(f"{whole}::a/y.en")))) == ["two"]
    with pytest.raises(DataError, match=r"x\.tgz .*'a/z\.en'.*'a/[xy]\.en'"):
        list(iter_sentences(local_text(Path(f"{whole}::a/z.en"))))
    data = whole.read_bytes()
    for name, content in (("cut", data[: len(data) // 2]), ("none", b"no archive at all" * 99)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name) as caught:
            list(iter_sentences(local_text(tmp_path / f"{name}::a/x.en")))
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="gone: No such file"):
        list(iter_sentences(local_text(tmp_path / "gone::a")))


def test_segments_are_read_from_sgm(tmp_path: Path) -> None:
    path = tmp_path / "test.sgm"
    path.write_text('<doc>\n<SEG id="1">  AT&amp;T  <b>\u00fc</b> </SEG>\n<hl><seg id=2></seg></hl>\n</doc>\n')
    assert list(iter_sentences(local_text(path))) == ["AT&amp;T <b>\u00fc</b>", ""]
    path.write_text('<doc>\n<seg id="1">one\ntwo</seg>\n')
    with pytest.raises(DataError, match=r"test\.sgm, line 2"):
        list(iter_sentences(local_text(path)))
    path.write_text("plain\n")
    with pytest.raises(DataError, match="has no segment"):
        list(iter_sentences(local_text(path)))


def test_several_segments_on_a_line_and_lines_made_to_hang(tmp_path: Path) -> None:
    path = tmp_path / "test.sgm"
    path.write_text("<seg id=1>one</seg> <seg id=2> two </seg>\n")
    assert list(iter_sentences(local_text(path))) == ["one", "two"]
    for content in ("<seg>" * 1_000_000, "<seg " * 1_000_000, "<seg>one<seg>two</seg>"):
        path.write_text(content)
        with pytest.raises(DataError, match=r"test\.sgm, line 1"):
            list(iter_sentences(local_text(path)))


def test_a_member_of_a_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("x.de-en.en", text(range(999), ENGLISH))
        made.writestr("x.de-en.de.gz", gzip.compress(b"eins\nzwei\n"))
    assert len(list(iter_sentences(local_text(Path(f"{path}::x.de-en.en"))))) == 999
    assert list(iter_sentences(local_text(Path(f"{path}::x.de-en.de.gz")))) == ["eins", "zwei"]
    with pytest.raises(DataError, match=r"x\.zip .*'x\.en'.*'x\.de-en\.en'"):
        list(iter_sentences(local_text(Path(f"{path}::x.en"))))
    data = path.read_bytes()
    for content in (data[:-30], data[:60] + bytes(40) + data[100:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.zip.*copy"):
            list(iter_sentences(local_text(Path(f"{path}::x.de-en.en"))))


def test_a_header_of_a_tar_archive_has_bounds(tmp_path: Path) -> None:
    path = tmp_path / "x.tgz"
    with gzip.open(path, "wb") as file, tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("long" * 1_000_000))
    with pytest.raises(DataError, match=r"x\.tgz .*4000001 bytes"):
        list(iter_sentences(local_text(Path(f"{path}::a"))))
