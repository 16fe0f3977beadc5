"""Repeated pairs found in buckets of their hashes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from data_prep.stages.dedup import (
    filtered_chunk,
    first_occurrences,
    list_buckets,
    list_rows,
    mark_bucket,
    write_keys,
)


@given(
    st.lists(st_numpy.arrays(np.uint64, st.integers(0, 9), elements=st.integers(0, 5)), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_buckets_find_the_first_of_each_hash(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[np.ndarray], bits: int
) -> None:
    root = tmp_path_factory.mktemp("pieces")
    spread = [keys * np.uint64(0x9E3779B97F4A7C15) for keys in chunks]  # over all buckets
    counts = []
    for number, keys in enumerate(spread):
        filtered_chunk(root, number).mkdir()
        counts.append(write_keys(filtered_chunk(root, number), keys, bits))
    table = np.array(counts, dtype=np.int64)
    distinct = sum(mark_bucket(bucket).distinct for bucket in list_buckets(root, table))
    found = np.concatenate([first_occurrences(rows) for rows in list_rows(root, table)])
    together = np.concatenate(spread)
    wanted = np.zeros(len(together), dtype=bool)
    wanted[np.unique(together, return_index=True)[1]] = True
    assert found.tolist() == wanted.tolist()
    assert distinct == wanted.sum()
