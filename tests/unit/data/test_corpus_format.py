"""A corpus reads back as written, in this package and in `datasets`; damaged files are refused by name."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import numpy as np
import pytest
from datasets import Features, List, Value
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.corpora import TEXT, Rows, id_table, small_tokenizer, train_model, write_corpus

from dstransformer.data import Corpus, Split, SplitWriter
from dstransformer.errors import DataError

ROWS: Rows = [([5, 6, 7], [8]), ([9], [10, 11]), ([12, 13], [14, 15, 16]), ([300], [17]), ([18, 19], [20])]

sentences = st.lists(st.integers(4, 36_999), max_size=7)
rows = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=20)


@settings(deadline=None, max_examples=60)
@given(rows=rows, shard_rows=st.integers(1, 6), batch_rows=st.integers(1, 9), data=st.data())
def test_gathering_equals_reading_row_by_row(rows: Rows, shard_rows: int, batch_rows: int, data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
    with TemporaryDirectory() as folder:
        writer = SplitWriter(Path(folder) / "train", vocab_size=37_000, shard_rows=shard_rows, has_text=False)
        for begin in range(0, len(rows), batch_rows):
            writer.write(id_table(rows[begin : begin + batch_rows]))
        info = writer.close()
        split = Split(Path(folder) / "train", info)
        src, src_lengths, tgt, tgt_lengths = split.gather(np.array(picks, dtype=np.int64))
        assert src.tolist() == [token for pick in picks for token in rows[pick][0]]
        assert tgt.tolist() == [token for pick in picks for token in rows[pick][1]]
        assert src_lengths.tolist() == [len(rows[pick][0]) for pick in picks]
        assert tgt_lengths.tolist() == [len(rows[pick][1]) for pick in picks]
        assert {array.dtype for array in (src, src_lengths, tgt, tgt_lengths)} == {np.dtype(np.int32)}
        assert split.src_lengths.tolist() == [len(source) for source, _ in rows]
        assert split.tgt_lengths.tolist() == [len(target) for _, target in rows]
        assert len(split) == info.pairs == len(rows)
        assert info.src_tokens == sum(len(source) for source, _ in rows)
        assert info.tgt_lengths.max == max(len(target) for _, target in rows)
        assert info.tgt_lengths.min == min(len(target) for _, target in rows)
        assert [shard.rows for shard in info.shards[:-1]] == [shard_rows] * (len(info.shards) - 1)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "int32")])
def test_ids_take_the_smallest_type_that_holds_the_vocabulary(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    writer = SplitWriter(tmp_path / "train", vocab_size=vocab_size, shard_rows=10, has_text=False)
    writer.write(id_table([([vocab_size - 1], [4])]))
    split = Split(tmp_path / "train", writer.close())
    assert split.gather(np.array([0]))[0].tolist() == [vocab_size - 1]
    with pytest.raises(IndexError, match="float64"):
        split.gather(np.array([0.5]))
    assert str(datasets.load_from_disk(str(tmp_path / "train")).features["src"].feature.dtype) == dtype


def test_the_schema_is_that_of_datasets(tmp_path: Path) -> None:
    folder, sizes = tmp_path / "train", {"vocab_size": 300, "src_vocab_size": 1 << 17, "shard_rows": 10}
    writer = SplitWriter(folder, **sizes, has_text=True, aligned=True)
    columns: dict[str, List | Value] = {"src": List(Value("int32")), "tgt": List(Value("uint16"))}
    columns |= {"src_text": Value("string"), "tgt_text": Value("string"), "alignment": List(Value("uint16"))}
    assert writer.schema.equals(Features(columns).arrow_schema, check_metadata=True)


def test_datasets_opens_a_corpus(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    loaded = datasets.load_from_disk(str(path))
    assert set(loaded) == {"train", "validation"}
    assert [(row["src"], row["tgt"]) for row in loaded["train"]] == ROWS
    assert loaded["validation"]["src_text"][:] == TEXT[0::2]
    assert datasets.load_from_disk(str(path / "train"))[3] == {"src": [300], "tgt": [17]}


def test_a_corpus_reads_back_as_written(tmp_path: Path) -> None:
    corpus = Corpus.open(write_corpus(tmp_path / "corpus", ROWS))
    assert corpus.splits == ("train", "validation")
    assert corpus.tokenizer.sha256 == small_tokenizer().sha256
    validation = corpus.split("validation")
    assert validation.src_texts() == TEXT[0::2]
    assert validation.tgt_texts() == TEXT[1::2]
    src, lengths, _, _ = validation.gather(np.arange(2))
    assert small_tokenizer().decode([part.tolist() for part in np.split(src, np.cumsum(lengths)[:-1])]) == TEXT[0::2]
    assert corpus.split("train").gather(np.array([4]))[0].tolist() == [18, 19]


def test_the_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    one, two = (write_corpus(tmp_path / name, ROWS) for name in ("one", "two"))
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_pairs_outside_the_split_raise_an_index_error(tmp_path: Path) -> None:
    train = Corpus.open(write_corpus(tmp_path / "corpus", ROWS)).split("train")
    for index in (-1, len(ROWS)):
        with pytest.raises(IndexError, match="5 pairs"):
            train.gather(np.array([0, index]))


def test_missing_splits_texts_and_rows_are_reported(tmp_path: Path) -> None:
    corpus = Corpus.open(write_corpus(tmp_path / "corpus", ROWS))
    with pytest.raises(DataError, match="'test'"):
        corpus.split("test")
    with pytest.raises(DataError, match="token ids only"):
        corpus.split("train").src_texts()
    with pytest.raises(ValueError, match="no row"):
        SplitWriter(tmp_path / "empty", vocab_size=9, shard_rows=9, has_text=False).close()


def test_damage_is_refused_by_name(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    shard = path / "train" / "data-00001-of-00002.arrow"
    whole = shard.read_bytes()
    position = whole.index(np.array([18, 19], dtype=np.uint16).tobytes())
    shard.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
    with pytest.raises(DataError, match=r"train/data-00001-of-00002\.arrow"):
        Corpus.open(path)
    assert Corpus.open(path, verify=False).split("train").gather(np.array([4]))[0].tolist() == [19, 19]
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow"):
        Corpus.open(path, verify=False).split("train")
    (path / "train" / "data-00000-of-00002.arrow").write_bytes(whole)
    with pytest.raises(DataError, match=r"2 pairs .*3"):
        Corpus.open(path, verify=False).split("train")
    shard.unlink()
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow"):
        Corpus.open(path, verify=False)
    (path / "tokenizer.model").write_bytes(train_model(vocab_size=350))
    with pytest.raises(DataError, match="tokenizer"):
        Corpus.open(path, verify=False)


def test_opening_a_folder_without_a_corpus_gives_advice(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    for folder in (tmp_path / "data", empty):
        folder.mkdir()
    mine = write_corpus(tmp_path / "data" / "mine", ROWS)
    for folder, advice in (
        (tmp_path / "nowhere", f"it does not exist; make one with `dst-prep build --out {tmp_path / 'nowhere'}`"),
        (empty, f"it has no dst.json; make one with `dst-prep build --out {empty}`"),
        (mine.parent, f"it has no dst.json; did you mean {mine}?"),
        (tmp_path, "it has no dst.json; name the folder that `dst-prep build` made"),
    ):
        with pytest.raises(DataError) as caught:
            Corpus.open(folder)
        assert str(caught.value) == f"{folder} is not a corpus: {advice}"
