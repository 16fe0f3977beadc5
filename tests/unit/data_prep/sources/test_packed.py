"""Parallel text as others pack it: OPUS's archives and mtdata's folders."""

from __future__ import annotations

import gzip
import re
import zipfile
from pathlib import Path

import pytest
from support.data.prep import ENGLISH, GERMAN, build, sentence

from data_prep.recipe.options import FilesOptions
from data_prep.sources.files import open_files
from dstransformer.data import Corpus
from dstransformer.errors import DataError, UserError

EN, DE = ([sentence(number, words) for number in range(3)] for words in (ENGLISH, GERMAN))


def joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def write_zip(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("README", "LICENSE"):
            archive.writestr(name, f"The {name} of the corpus.\n")
        for name, text in members.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def opus(tmp_path: Path) -> Path:
    members = {"Europarl.de-en.de": joined(DE), "Europarl.de-en.en": joined(EN), "Europarl.de-en.ids": "1\n" * 3}
    return write_zip(tmp_path / "de-en.txt.zip", **members)


@pytest.fixture
def mtdata(tmp_path: Path) -> Path:
    folder = tmp_path / "mt"
    (folder / "train-parts").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "mtdata.signature.txt").write_text("mtdata get -l deu-eng -tr Statmt-news-1-deu-eng\n")
    parts = folder / "train-parts"
    for name, pair in (("Statmt-news-1.2-deu-eng", ("deu", "eng")), ("OPUS-books-1-eng-deu", ("deu", "eng"))):
        for code, lines in zip(pair, (DE, EN), strict=True):
            (parts / f"{name}.{code}").write_text(joined([f"{line} {name}" for line in lines]), encoding="utf-8")
    (parts / "OPUS-books-1-eng-deu.meta.tsv").write_text("x\n" * 3)
    (parts / ".valid.OPUS-books-1-eng-deu").write_text("")
    for name in ("dev", "test1", "test2"):
        for code, lines in (("deu", DE), ("eng", EN)):
            (folder / "tests" / f"{name}-deu-eng.{code}").write_text(joined(lines), encoding="utf-8")
            (folder / f"{name}.{code}").symlink_to(f"tests/{name}-deu-eng.{code}")
    return folder


def pairs(split: str = "train", *, src_lang: str = "en", tgt_lang: str = "de", **files: Path) -> list[tuple[str, str]]:
    source = open_files(FilesOptions(src_lang=src_lang, tgt_lang=tgt_lang, **files))
    return [(row["src"], row["tgt"]) for table in source.splits[split]() for row in table.to_pylist()]


def test_a_moses_archive_of_opus_is_read_in_both_directions(opus: Path) -> None:
    assert pairs(train=opus) == list(zip(EN, DE, strict=True))
    assert pairs(train=opus, src_lang="deu", tgt_lang="eng") == list(zip(DE, EN, strict=True))
    source = open_files(FilesOptions(src_lang="en", tgt_lang="de", train=opus))
    names = [file.name for file in source.info.inputs]
    assert names == ["de-en.txt.zip::Europarl.de-en.en", "de-en.txt.zip::Europarl.de-en.de"]
    assert len({file.sha256 for file in source.info.inputs}) == 1


def test_regions_of_opus_are_found(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", **{"GNOME.en-pt_BR.en": joined(EN), "GNOME.en-pt_BR.pt_BR": joined(DE)})
    assert pairs(train=path, tgt_lang="pt-BR") == pairs(train=path, tgt_lang="pt") == list(zip(EN, DE, strict=True))


def test_the_folder_of_mtdata_has_all_splits(mtdata: Path) -> None:
    files = {"train": mtdata, "valid": mtdata, "test": mtdata}
    found = pairs(**files)
    names = ["OPUS-books-1-eng-deu", "Statmt-news-1.2-deu-eng"]
    assert found == [(f"{en} {name}", f"{de} {name}") for name in names for en, de in zip(EN, DE, strict=True)]
    assert pairs("validation", **files) == list(zip(EN, DE, strict=True))
    assert pairs("test", **files) == 2 * list(zip(EN, DE, strict=True))


def test_merged_texts_of_mtdata_are_taken_in_place_of_parts(mtdata: Path) -> None:
    for code, lines in (("deu", DE), ("eng", EN)):
        (mtdata / f"train.{code}.gz").write_bytes(gzip.compress(joined(lines).encode()))
    assert pairs(train=mtdata) == list(zip(EN, DE, strict=True))


@pytest.mark.parametrize(("members", "message"), [
    ({"a.de-en.de": "x\n", "a.de-en.en": "x\ny\n"}, "x.zip::a.de-en.en has 2 lines but .*::a.de-en.de has 1"),
    ({"a.de-fr.de": "x\n", "a.de-fr.fr": "x\n"}, "x.zip::a.de-fr has no text in en; it has de, fr$"),
    ({"a.de-en.de": "x\n"}, "x.zip::a.de-en has no text in en; it has de$"),
    ({"a.xml": "x\n"}, r"x.zip is no archive of OPUS with a pair such as .* it has LICENSE, README, a.xml\. To"),
    ({"../a.de-en.de": "x\n"}, "has the member '../a.de-en.de', which leads out of the archive"),
    ({"/etc/a.de-en.de": "x\n"}, "has the member '/etc/a.de-en.de', which leads out of the archive"),
    ({"a.de-en.de": "", "a.de-en.en": "x\n"}, "x.zip::a.de-en.de is empty"),
])  # fmt: skip
def test_other_archives_are_refused(tmp_path: Path, members: dict[str, str], message: str) -> None:
    path = write_zip(tmp_path / "x.zip", **members)
    with pytest.raises(DataError, match=message):
        pairs(train=path)


def test_damaged_archives_are_refused(opus: Path, tmp_path: Path) -> None:
    content = opus.read_bytes()
    with zipfile.ZipFile(opus) as archive:
        member = archive.getinfo("Europarl.de-en.de")
    begin = member.header_offset + 30 + len(member.filename)
    for name, damage in (
        ("half.zip", content[: len(content) // 2]),
        ("text.zip", b"not an archive"),
        ("bytes.zip", content[:begin] + b"\xff" * 8 + content[begin + 8 :]),
    ):
        (tmp_path / name).write_bytes(damage)
        with pytest.raises(DataError, match=name):
            pairs(train=tmp_path / name)


def test_other_folders_are_refused(mtdata: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, languages, message in (
        (
            tmp_path / "empty",
            ("en", "de"),
            "empty is not a folder of mtdata with train text: it needs a folder train-pa",
        ),
        (mtdata, ("en", "fr"), "mt/OPUS-books-1-eng-deu has no text in fr; it has deu, eng"),
        (mtdata, ("eng_US", "fi"), "has no text in fi; it has deu, eng"),
    ):
        with pytest.raises(DataError, match=message):
            pairs(train=folder, src_lang=languages[0], tgt_lang=languages[1])
    (mtdata / "train-parts" / "OPUS-books-1-eng-deu.deu").unlink()
    with pytest.raises(DataError, match=r"OPUS-books-1-eng-deu .*de; .*eng"):
        pairs(train=mtdata)
    (mtdata / "train-parts" / "OPUS-books-1-eng-deu.deu").write_text("nur eine Zeile\n")
    with pytest.raises(DataError, match=r"eng-deu\.eng has 3 .*eng-deu.deu has 1"):
        pairs(train=mtdata)


def test_a_side_is_no_archive_or_folder(opus: Path, mtdata: Path) -> None:
    for path in (opus, mtdata):
        with pytest.raises(UserError, match=re.escape(str(path))):
            pairs(src=path, tgt=path)


def test_a_corpus_is_built_from_both(opus: Path, mtdata: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "ende.yaml"
    recipe.write_text(f"""
src_lang: en
tgt_lang: de
sources:
  opus: {{source: files, train: {opus.name}, valid: {mtdata.name}}}
  mtdata: {{source: files, train: {mtdata.name}}}
vocab: {{vocab_size: 330}}
""")
    assert build(recipe, "--out", tmp_path / "corpus") == 0
    manifest = Corpus.open(tmp_path / "corpus").manifest
    assert [(part.name, part.pairs) for part in manifest.parts] == [("opus", 3), ("mtdata", 6)]
    assert manifest.splits["validation"].pairs == 3
