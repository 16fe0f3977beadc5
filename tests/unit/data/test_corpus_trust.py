"""A manifest that does not describe its corpus is refused in one line that names the file and the field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.data.corpora import Rows, write_corpus

from dstransformer.data import Corpus, Manifest
from dstransformer.errors import DataError
from dstransformer.io.files import file_sha256

ROWS: Rows = [([5, 6, 7], [8]), ([9], [10, 11]), ([12, 13], [14, 15, 16]), ([300], [17]), ([18, 19], [20])]

Change = Callable[[dict[str, Any]], object]


def edit(path: Path, change: Change) -> None:
    record = json.loads((path / "manifest.json").read_text())
    change(record)
    (path / "manifest.json").write_text(json.dumps(record))


def in_train(**changes: object) -> Change:
    return lambda record: record["splits"]["train"].update(changes)


def in_shard(**changes: object) -> Change:
    return lambda record: record["splits"]["train"]["shards"][0].update(changes)


def with_part(**changes: object) -> Change:
    part = {"name": "mine", "src_lang": "en", "tgt_lang": "de", "weight": 1.0, "tag": None, "read": 5, "pairs": 5}
    part |= {"dropped": {}} | changes
    return lambda record: record.update(parts=[part])


def with_words(when: str, *counts: int) -> Change:
    return lambda record: record["cleaning"].update({when: {"src": [0, 5], "tgt": list(counts)}})


def drop(name: str) -> Change:
    return lambda record: record.pop(name)


@pytest.mark.parametrize(("change", "wanted"), [
    (in_shard(name="../.."), r"splits\.train\.shards\.0\.name: '\.\./\.\.' is not a plain file name"),
    (in_shard(name="/etc/passwd"), r"'/etc/passwd' is not a plain file name"),
    (in_shard(name=".."), "is not a plain file name"),
    (in_shard(name=""), "is not a plain file name"),
    (in_shard(name="a\0b"), "is not a plain file name"),
    (in_shard(name="data-00001-of-00002.arrow"), r"splits\.train: shards names a file twice"),
    (in_shard(rows=-3), r"splits\.train\.shards\.0\.rows: .* greater than 0"),
    (in_shard(rows=2), r"splits\.train: pairs is 5, but the rows of its shards add up to 4"),
    (in_shard(rows="3"), r"splits\.train\.shards\.0\.rows: Input should be a valid integer, found '3'"),
    (in_shard(sha256="abc"), r"splits\.train\.shards\.0\.sha256"),
    (with_part(read=6), r"parts\.0: read is 6, but pairs and dropped do not add up to it"),
    (with_part(read=6, dropped={"empty": 1}), r"cleaning\.dropped\.empty is 0, but those of the parts add up to 1"),
    (with_words("before", 0, 2, 2), r"cleaning: the sentences that before counts do not add up to 5 pairs"),
    (with_words("after", 6), r"cleaning: the sentences that after counts do not add up to 5 pairs"),
    (with_words("after", *[1] * 252), r"cleaning\.after\.tgt: Tuple should have at most 251 items"),
    (in_train(src_unknown=99), r"splits\.train: src_unknown is more than the \d+ tokens"),
    (in_train(pairs=-5), r"splits\.train\.pairs: .* greater than 0, found -5"),
    (in_train(pairs=0), r"splits\.train\.pairs"),
    (in_train(pairs=7), r"splits\.train: pairs is 7"),
    (in_train(pairs=10**40), r"splits\.train"),
    (in_train(shards=[]), r"splits\.train\.shards"),
    (in_train(src_tokens=-1), r"splits\.train\.src_tokens"),
    (in_train(src_tokens=10**9), r"splits\.train: src_lengths cannot be those of 5 sentences with 1000000000 tokens"),
    (in_train(tgt_lengths={"min": 9, "mean": 5, "max": 1}), r"splits\.train: tgt_lengths cannot"),
    (in_train(tgt_lengths={"min": 1, "mean": float("nan"), "max": 9}), "NaN is not a JSON number"),
    (lambda record: record.update(splits={}), r"splits: "),
    (lambda record: record["splits"].update({"../up": record["splits"]["train"]}), r"'\.\./up' is not a plain"),
    (lambda record: record["tokenizer"].update(vocab_size=99999), r"tokenizer\.vocab_size: it says 99999, token"),
    (lambda record: record["tokenizer"].update(vocab_size=-1), r"tokenizer\.vocab_size"),
    (lambda record: record["cleaning"].update(read=0), r"cleaning\.read"),
    (lambda record: record["cleaning"].update(dropped={"empty": 4}), r"cleaning: read is 5, but kept and dropped"),
    (lambda record: record["cleaning"].update(read=6, kept=6), r"cleaning\.kept is 6, but splits\.train\.pairs is 5"),
    (lambda record: record.update(overlap={"test": {"sentences": 1, "pairs": 1}}), r"overlap\.test names an unknown"),
    (lambda record: record.update(overlap={"validation": {"sentences": 9, "pairs": 1}}), r"overlap\.validation"),
    (lambda record: record.update(overlap={"validation": {"sentences": 1, "pairs": 2}}), r"overlap\.validation"),
    (drop("splits"), r"splits: Field required"),
    (lambda record: record.update(surprise=1), r"damaged \(surprise: "),
])  # fmt: skip
def test_an_inconsistent_manifest_is_refused(tmp_path: Path, change: Change, wanted: str) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    edit(path, change)
    with pytest.raises(DataError, match=wanted) as caught:
        Corpus.open(path, verify=False)
    assert str(path / "manifest.json") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("content", ["[]", "null", "7", "[" * 100_000, '{"splits": 2}', "\ud800", ""])
def test_a_file_that_is_not_a_manifest_is_refused(tmp_path: Path, content: str) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    (path / "manifest.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"manifest\.json"):
        Manifest.load(path)


@pytest.mark.parametrize(("change", "wanted"), [
    (in_train(src_tokens=10), r"src_tokens .* say 10 tokens"),
    (in_train(tgt_lengths={"min": 0, "mean": 1.6, "max": 3}), "tgt_lengths say 8 tokens, 0 to 3 a sentence"),
    (in_train(src_unknown=2), "src_unknown is 2, but the shards hold 0 <unk>"),
])  # fmt: skip
def test_counts_are_compared_with_the_shards(tmp_path: Path, change: Change, wanted: str) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    edit(path, change)
    with pytest.raises(DataError, match=rf"manifest\.json .*splits\.train: .*{wanted}"):
        Corpus.open(path)


def swap_shard(path: Path, table: pa.Table) -> None:
    """Replace the first shard by another table, and its checksum in the manifest."""
    shard = path / "train" / "data-00000-of-00002.arrow"
    with pa.OSFile(str(shard), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    edit(path, in_shard(sha256=file_sha256(shard)))


def lists(rows: list[list[int | None] | None], kind: pa.DataType) -> pa.Array:
    return pa.array(rows, pa.list_(kind))


@pytest.mark.parametrize(("src", "wanted"), [
    (lists([[5, 6, 340], [9], [12, 13]], pa.uint16()), "src holds ids outside of the vocabulary of 340 pieces"),
    (lists([[5, 6, -1], [9], [12, 13]], pa.int32()), "src holds ids outside of the vocabulary of 340 pieces"),
    (lists([[5, 6, None], [9], [12, 13]], pa.int32()), "src holds nulls"),
    (lists([[5, 6, 7], None, [12, 13]], pa.int32()), "no column 'src'"),
    (lists([[5, 6, 7], [9], [12, 13]], pa.int64()), "no column 'src'"),
    (pa.array(["a", "b", "c"]), "no column 'src'"),
    (None, "no column 'src'"),
])  # fmt: skip
def test_ids_are_compared_with_the_vocabulary(tmp_path: Path, src: pa.Array | None, wanted: str) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    columns = {"tgt": lists([[8], [10, 11], [14, 15, 16]], pa.uint16())}
    swap_shard(path, pa.table(columns if src is None else {"src": src, **columns}))
    with pytest.raises(DataError, match=rf"data-00000-of-00002\.arrow is damaged \({wanted}"):
        Corpus.open(path)


def test_a_moved_corpus_opens_through_a_link(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    shutil.move(path, tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert Corpus.open(tmp_path / "link").splits == ("train", "validation")


def test_a_column_name_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    shard = sorted((path / "train").glob("*.arrow"))[0]
    content = shard.read_bytes()
    assert b"src" in content
    shard.write_bytes(content.replace(b"src", b"s\xbac"))
    with pytest.raises(DataError, match=r"\.arrow is damaged"):
        Corpus.open(path, verify=False).split("train")
