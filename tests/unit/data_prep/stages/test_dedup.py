"""Repeated pairs found in buckets of their hashes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from data_prep.stages.dedup import Buckets, filtered_chunk, first_occurrences, mark_bucket, write_keys


@given(
    st.lists(st_numpy.arrays(np.uint64, st.integers(0, 9), elements=st.integers(0, 5)), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_buckets_find_the_first_of_each_hash(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[np.ndarray], bits: int
) -> None:
    root = tmp_path_factory.mktemp("chunks")
    spread = [keys * np.uint64(0x9E3779B97F4A7C15) for keys in chunks]  # over all buckets
    for number, keys in enumerate(spread):
        filtered_chunk(root, number).mkdir()
        write_keys(filtered_chunk(root, number), keys, bits)
    buckets = Buckets(root, len(spread), bits)
    distinct = sum(mark_bucket(buckets, bucket).distinct for bucket in range(len(buckets)))
    found = np.concatenate([first_occurrences(buckets, chunk) for chunk in range(len(spread))])
    together = np.concatenate(spread)
    wanted = np.zeros(len(together), dtype=bool)
    wanted[np.unique(together, return_index=True)[1]] = True
    assert found.tolist() == wanted.tolist()
    assert distinct == wanted.sum()
