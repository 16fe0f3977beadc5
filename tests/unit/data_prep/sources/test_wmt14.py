"""A local copy in the layout of the hub, read through `datasets`."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.recipe.options import Wmt14Options
from data_prep.sources.opening import open_source
from dstransformer.errors import DataError, UserError

PAIRS = [(f"sentence {n}", f"Satz {n}") for n in range(9)]


def write_copy(folder: Path) -> Path:
    (folder / "de-en").mkdir(parents=True)
    parts = {
        "train-00000-of-00002": PAIRS[:4],
        "train-00001-of-00002": PAIRS[4:7],
        "validation-00000-of-00001": PAIRS[7:8],
        "test-00000-of-00001": PAIRS[8:],
    }
    for name, pairs in parts.items():
        column = pa.array([{"de": de, "en": en} for en, de in pairs])
        pq.write_table(pa.table({"translation": column}), folder / "de-en" / f"{name}.parquet")
    return folder


def options(hub_path: Path | None) -> Wmt14Options:
    return Wmt14Options(hub_path=hub_path)


@pytest.mark.parametrize("direction", ["en-de", "de-en"])
def test_a_local_copy_is_read(tmp_path: Path, direction: str) -> None:
    src, tgt = direction.split("-")
    source = open_source(options(write_copy(tmp_path)).model_copy(update={"src_lang": src, "tgt_lang": tgt}))
    wanted = {"train": PAIRS[:7], "validation": PAIRS[7:8], "test": PAIRS[8:]}
    for split, stream in source.splits.items():
        pairs = [p for table in stream() for p in zip(*(c.to_pylist() for c in table.columns), strict=True)]
        assert pairs == [pair if src == "en" else pair[::-1] for pair in wanted[split]]
    assert source.info.inputs[0].name == "train-00000-of-00002.parquet"
    assert len(source.info.inputs) == 4


def test_another_direction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--pair de-en .*en-fr"):
        open_source(options(tmp_path).model_copy(update={"tgt_lang": "fr"}))


def test_a_copy_without_a_split_is_refused(tmp_path: Path) -> None:
    write_copy(tmp_path)
    (tmp_path / "de-en" / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"'test'.*train, validation"):
        open_source(options(tmp_path))
    with pytest.raises(DataError, match=r"--hub-path .*fr-en"):
        open_source(options(tmp_path).model_copy(update={"pair": "fr-en", "tgt_lang": "fr"}))


def test_a_copy_that_changes_while_it_is_read_ends_the_build(tmp_path: Path) -> None:
    source = open_source(options(write_copy(tmp_path)))
    path = tmp_path / "de-en" / "train-00001-of-00002.parquet"
    assert source.info.inputs[1].size == path.stat().st_size
    stream = source.splits["train"]()
    next(stream)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=r"train-00001-of-00002\.parquet"):
        list(stream)
