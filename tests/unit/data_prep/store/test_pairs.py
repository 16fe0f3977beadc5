"""Files of pairs: their batches, and the chunks that they are cut into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_prep.store.pairs import (
    SCHEMA,
    Index,
    PairsWriter,
    count_pairs,
    cut_pairs,
    index_pairs,
    iter_chunk,
    iter_pairs,
    join_pairs,
    take_pairs,
)

ROWS = 9_000


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.arrow"
    with PairsWriter(path) as writer:
        writer.write(
            pa.table([list(map(str, range(ROWS))), [""] * ROWS, [0] * ROWS, [False] * ROWS], names=SCHEMA.names[:4])
        )
    return path


def test_a_large_table_is_read_in_small_batches(pairs: Path) -> None:
    batches = list(iter_pairs(pairs))
    assert max(batch.num_rows for batch in batches) <= 2000
    assert [text for batch in batches for text in batch["src"].to_pylist()] == list(map(str, range(ROWS)))
    assert count_pairs(pairs) == ROWS


def test_chunks_and_rows_are_found_by_the_index(pairs: Path, tmp_path: Path) -> None:
    index = index_pairs(pairs)
    assert index.firsts.tolist() == [0, 2000, 4000, 6000, 8000, 9000]
    chunks = cut_pairs(pairs, index)
    assert cut_pairs(pairs) == chunks
    assert [(chunk.first, chunk.rows, chunk.batches) for chunk in chunks] == [(0, 8000, 4), (8000, 1000, 1)]
    texts = [text for chunk in chunks for table in iter_chunk(chunk) for text in table["src"].to_pylist()]
    assert texts == list(map(str, range(ROWS)))
    for rows in ([], [0], [8999], [5, 1999, 2000, 2000, 7999, 8000]):
        found = take_pairs(pairs, np.array(rows, dtype=np.int64), index)
        assert found["src"].to_pylist() == list(map(str, rows))
    join_pairs([pairs, pairs], tmp_path / "twice.arrow")
    assert index_pairs(tmp_path / "twice.arrow").firsts[-1] == 2 * ROWS


@pytest.mark.parametrize(
    ("batches", "chunks", "longest"),
    [(1, 1, 1), (12, 3, 4), (1000, 125, 8), (100_000, 4000, 25), (102_400, 4096, 25), (500_000, 4066, 123)],
)
def test_a_file_is_cut_into_few_chunks(batches: int, chunks: int, longest: int) -> None:
    index = Index(np.arange(batches), 2000 * np.arange(batches + 1))
    cut = cut_pairs(Path("pairs.arrow"), index)
    assert (len(cut), max(chunk.batches for chunk in cut)) == (chunks, longest)
    assert sum(chunk.rows for chunk in cut) == 2000 * batches
    assert [chunk.first for chunk in cut] == [2000 * chunk.offset for chunk in cut]
