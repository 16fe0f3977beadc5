"""Every file format yields its pairs, or one error that names the file and the line."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.prep import build, refuses

from data_prep.recipe.options import FilesOptions
from data_prep.sources.files import open_files, swapped_sides
from dstransformer.data import Corpus
from dstransformer.errors import DataError, UserError

PAIRS = [("a dog", "ein Hund"), ("", "leer"), ("two\u2028lines", "ein Männchen 🦊")]


def read(**given: Any) -> list[tuple[str, str]]:
    source = open_files(FilesOptions(**{"src_lang": "en", "tgt_lang": "de", "valid_size": 2} | given))
    tables = list(source.splits["train"]())
    return [pair for table in tables for pair in zip(table["src"].to_pylist(), table["tgt"].to_pylist(), strict=True)]


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, text to a name in ``.gz`` compressed."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" and isinstance(content, str) else data)
    return path


def text(side: int, end: str = "\n") -> str:
    return "".join(pair[side] + end for pair in PAIRS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_two_texts(tmp_path: Path, ending: str, end: str) -> None:
    src, tgt = write(tmp_path / f"x.en{ending}", text(0, end)), write(tmp_path / f"x.de{ending}", text(1, end))
    assert read(src=src, tgt=tgt) == PAIRS


def test_a_byte_order_mark_and_a_missing_final_newline_are_ignored(tmp_path: Path) -> None:
    src, tgt = write(tmp_path / "x.en", "\ufeffa\nb"), write(tmp_path / "x.de", "c\nd\n")
    assert read(src=src, tgt=tgt) == [("a", "c"), ("b", "d")]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_tab_separated_lines(tmp_path: Path, ending: str) -> None:
    lines = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)
    assert read(train=write(tmp_path / f"x.tsv{ending}", lines)) == PAIRS


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_json_lines(tmp_path: Path, nested: bool, ending: str) -> None:
    records: list[Any] = [{"de": tgt, "en": src, "id": 3} for src, tgt in PAIRS]
    lines = "".join(json.dumps({"translation": r} if nested else r) + "\n" for r in records)
    assert read(train=write(tmp_path / f"x.jsonl{ending}", lines)) == PAIRS


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parquet(tmp_path: Path, nested: bool, kind: pa.DataType) -> None:
    columns = pa.table({"de": pa.array([t for _, t in PAIRS], kind), "en": pa.array([s for s, _ in PAIRS], kind)})
    table = pa.table({"translation": columns.to_struct_array()}) if nested else columns
    pq.write_table(table, tmp_path / "x.parquet")
    assert read(train=tmp_path / "x.parquet") == PAIRS


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("how", ["stream", "file", "lz4", "zstd"])
def test_arrow(tmp_path: Path, nested: bool, how: str) -> None:
    columns = pa.table({"n": [1, 2, 3], "de": [tgt for _, tgt in PAIRS], "en": [src for src, _ in PAIRS]})
    table = pa.table({"translation": columns.to_struct_array()}) if nested else columns
    path = tmp_path / ("x.arrow" if how in ("stream", "file") else "x.feather")
    options = pa.ipc.IpcWriteOptions(compression=how if path.suffix == ".feather" else None)
    make = pa.ipc.new_stream if how == "stream" else pa.ipc.new_file
    with make(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    assert read(train=path) == PAIRS
    write(path, path.read_bytes()[:-200] if how == "stream" else b"ARROW1\0\0" + b"\xff" * 50)
    with pytest.raises(DataError, match=r"x\..* Arrow"):
        read(train=path)


def test_what_an_arrow_file_may_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.arrow"
    monkeypatch.setattr("data_prep.sources.records._MAX_BATCH_BYTES", 2**20)
    for table, message in (
        (pa.table({"en": pa.array(["a"]).dictionary_encode(), "de": ["b"]}), "it holds a dictionary"),
        (pa.table({"en": ["a" * 1_200_000], "de": ["b"]}), "a batch states 1,200,... bytes, more than 1,048,576"),
        (pa.table({"en": ["a", None], "de": ["b", "c"]}), "row 2: column 'en' is null"),
        (pa.table({"en": ["a"], "fr": ["b"]}), "no column 'de'; it has en, fr"),
        (pa.table({"en": [1], "de": ["b"]}), "column 'en' holds int64, wanted text"),
        (pa.table([["a"], ["b"], ["c"]], ["en", "de", "en"]), "several columns 'en'"),
    ):
        with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        with pytest.raises(DataError, match=message):
            read(train=path)


def test_more_lines_than_a_batch(tmp_path: Path) -> None:
    lines = [str(n) for n in range(25_000)]
    src, tgt = write(tmp_path / "x.en", "\n".join(lines)), write(tmp_path / "x.de", "\n".join(lines))
    assert read(src=src, tgt=tgt) == list(zip(lines, lines, strict=True))


@pytest.mark.parametrize("counts", [(3, 5), (10_000, 10_001)])
def test_texts_of_different_length_are_refused(tmp_path: Path, counts: tuple[int, int]) -> None:
    src, tgt = write(tmp_path / "x.en", "a\n" * counts[0]), write(tmp_path / "x.de", "b\n" * counts[1])
    with pytest.raises(DataError, match=rf"x\.en .*{counts[0]:,} .*x\.de .*{counts[1]:,}"):
        read(src=src, tgt=tgt)


def test_sides_that_look_swapped_cause_a_warning() -> None:
    right = FilesOptions(src_lang="en", tgt_lang="de", src="x.en.gz", tgt="x.de", valid_src="en", valid_tgt="de")
    assert swapped_sides(right) is None
    wrong = {"test_src": (Path("y.de.gz"),), "test_tgt": (Path("y.EN"),)}
    warning = swapped_sides(right.model_copy(update=wrong))
    assert warning is not None
    assert "--test-src y.de.gz is taken for en and --test-tgt y.EN for de: are the sides swapped?" in warning


def test_the_same_file_for_both_sides_is_refused(tmp_path: Path) -> None:
    src = write(tmp_path / "x.en", text(0))
    (tmp_path / "x.de").symlink_to(src)
    for tgt in (src, tmp_path / "x.de"):
        with pytest.raises(UserError, match=f"--src and --tgt .*{tgt}"):
            read(src=src, tgt=tgt)
    with pytest.raises(DataError, match="standard input"):
        read(src=src, tgt=Path("-"))


@pytest.mark.parametrize("before", [0, 12_345])
def test_invalid_utf8_is_refused(tmp_path: Path, before: int) -> None:
    src = write(tmp_path / "x.en", b"a\n" * before + b"gr\xfc\xdf\n" + b"a\n" * 9)
    tgt = write(tmp_path / "x.de", b"a\n" * (before + 10))
    with pytest.raises(DataError, match=rf"x\.en, line {before + 1}, byte 3"):
        read(src=src, tgt=tgt)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", "a\tb\nc\n", r"x\.tsv, line 2: no tab"),
        ("x.tsv", "a\tb\tc\n", r"x\.tsv, line 1: 3 columns"),
        ("x.tsv", "de\ten\na dog\tein Hund\n", "swap --src-lang"),
        ("x.tsv", "en\tde\na dog\tein Hund\n", "are a header"),
        ("x.tsv", "Source\tTarget\na dog\tein Hund\n", "are a header"),
        ("x.tsv.gz", gzip.compress(b"a\tb\n", mtime=0)[:-6], r"x\.tsv\.gz: the gzip data are truncated"),
        ("x.jsonl", '{"en": "a", "de": "b"}\n{"en"\n', r"x\.jsonl, line 2: not a JSON object"),
        ("x.jsonl", '{"en": "a", "fr": "b"}\n', r"x\.jsonl, line 1: wanted an object with the strings 'en' and 'de'"),
        ("x.jsonl", '{"en": "a", "de": null}\n', r"x\.jsonl, line 1: wanted"),
        ("x.jsonl", '["a", "b"]\n', r"x\.jsonl, line 1: wanted"),
        ("x.parquet", "PAR1 not", r"x\.parquet cannot be read as Parquet"),
        ("x.csv", "a,b\n", r"x\.csv: \.csv is not \.tsv, \.jsonl, .*; rename or convert it"),
        ("x", "a,b\n", r"x: no ending is not"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(train=write(tmp_path / name, content))


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.TGZ", "x.zip"])
def test_an_archive_without_the_name_of_a_member_is_refused(tmp_path: Path, name: str) -> None:
    archive, text = write(tmp_path / name, "content"), write(tmp_path / "x.de", "a\n")
    both = () if name == "x.zip" else ({"train": archive},)  # a zip may be one of OPUS
    for given in (*both, {"src": archive, "tgt": text}, {"src": text, "tgt": archive}):
        with pytest.raises(DataError, match=f"{name}::MEMBER"):
            read(**given)


def test_a_file_with_both_sides_is_not_taken_for_one(tmp_path: Path) -> None:
    both, text = write(tmp_path / "x.tsv", "a\tb\n"), write(tmp_path / "x.de", "b\n")
    with pytest.raises(DataError, match=r"x\.tsv .*--train"):
        read(src=both, tgt=text)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    there = write(tmp_path / "x.de", "a\n")
    for path, message in (
        (tmp_path / "none", "none: No such file"),
        (write(tmp_path / "empty.gz", ""), "empty.gz is empty"),
    ):
        with pytest.raises(DataError, match=message):
            read(src=path, tgt=there)
    with pytest.raises(DataError, match=r"mtdata:X-news-18\.1-deu-eng"):
        read(train=Path("mtdata:X-news-18.1-deu-eng"))


def test_invalid_combinations_of_options_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", "a\tb\n")
    for given, message in (
        ({}, "no training text"),
        ({"src": path}, "--src is given without --tgt"),
        ({"train": path, "valid_tgt": path}, "--valid-tgt is given without --valid-src"),
        ({"train": path, "src": path, "tgt": path}, "--train and --src or --tgt name the same split"),
        ({"train": path, "valid": path}, "--valid-size 2 .* a validation set is given too"),
        ({"train": path, "tgt_lang": "en"}, "are both 'en'"),
    ):
        with pytest.raises(UserError, match=message):
            read(**given)


def test_patterns_stand_for_several_files(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]?"  # a folder that exists is no pattern
    folder.mkdir()
    for number in (2, 10, 1):
        write(folder / f"part-{number:02}.en", f"{number} en\n")
        write(folder / f"part-{number:02}.de", f"{number} de\n")
    source = open_files(
        FilesOptions(src_lang="en", tgt_lang="de", src=folder / "*.en", tgt=folder / "*.de", valid_size=1)
    )
    assert [row for table in source.splits["train"]() for row in table["src"].to_pylist()] == ["1 en", "2 en", "10 en"]
    assert [one.name for one in source.info.inputs] == [
        f"part-{n:02}.{side}" for n in (1, 2, 10) for side in ("en", "de")
    ]
    (folder / "part-02.de").unlink()
    with pytest.raises(DataError, match=r"\*\.en 3 .*\*\.de 2"):
        read(src=folder / "*.en", tgt=folder / "*.de")
    with pytest.raises(DataError, match=r"no file fits .*\*\.fr"):
        read(src=folder / "*.en", tgt=folder / "*.fr")


def test_a_list_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.en", f"{number} en\n")
        write(tmp_path / f"{number}.de.gz", f"{number} de\n")
    pairs = [(f"{number} en", f"{number} de") for number in (3, 0, 1, 2)]
    src, tgt = [tmp_path / "3.en", tmp_path / "[012].en"], [tmp_path / f"{n}.de.gz" for n in (3, 0, 1, 2)]
    assert read(src=src, tgt=tgt) == pairs
    with pytest.raises(DataError, match=r"\[012\]\.en 4 and .* 3"):
        read(src=src, tgt=tgt[1:])
    with pytest.raises(UserError, match="--src and --tgt"):
        read(src=src, tgt=[*tgt[1:], src[0]][::-1])
    with pytest.raises(ValueError, match="the list is empty"):
        read(src=[], tgt=[])
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--valid-size", "1"]
    status = build(*options, "--src", src[0], "--src", tmp_path / "0.en", "--tgt", *tgt, "--out", tmp_path / "c")
    assert f"{tmp_path / '0.en'} 2 and " in refuses(capsys, status)  # the files of both options


def test_scores_of_other_tools_drop_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"dog number {n}\tHund Nummer {n}\n" for n in range(60)]
    write(tmp_path / "text.tsv", "".join(lines))
    scores = write(tmp_path / "scores.gz", "".join(f"{n / 60:.3f}\n" for n in range(60)))
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--train", tmp_path / "text.tsv"]
    options += ["--valid-size", "5", "--vocab-size", "300", "--out", tmp_path / "corpus", "--scores", scores]
    assert "--scores and --min-score go together" in refuses(capsys, build(*options))
    assert build(*options, "--min-score", "0.5") == 0
    manifest = Corpus.open(tmp_path / "corpus").manifest
    assert manifest.cleaning.dropped["score"] == 30
    assert manifest.cleaning.kept == 25, "what is held out has a score too"
    assert manifest.cleaning.examples["score"][0] == ("dog number 0", "Hund Nummer 0")
    assert manifest.options["min_score"] == 0.5
    for content, message in (
        ("0.5\n" * 59, "59 scores, fewer than pairs"),
        ("0.5\n" * 61, "more scores than the 60 pairs"),
        ("0.5\nhigh\n", "line 2: 'high' is not a number"),
        ("nan\n", "line 1: 'nan' is not a number"),
    ):
        write(tmp_path / "scores", content)
        with pytest.raises(DataError, match=message):
            read(train=tmp_path / "text.tsv", scores=tmp_path / "scores", min_score=0.0)


def test_scores_that_change_while_they_are_read_are_refused(tmp_path: Path) -> None:
    scores = write(tmp_path / "scores", "0.5\n")
    train = write(tmp_path / "x.tsv", "a\tb\n")
    options = FilesOptions(src_lang="en", tgt_lang="de", valid_size=1, train=train, scores=scores, min_score=0)
    stream = open_files(options).splits["train"]()
    os.utime(scores, ns=(0, 0))
    with pytest.raises(DataError, match="scores changed"):
        list(stream)
