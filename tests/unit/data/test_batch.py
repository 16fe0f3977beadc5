from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dstransformer.data.batch import pack

sentences = st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=1, max_size=8)


@given(sentences)
def test_pack_appends_the_end_token_to_each_sentence(batch: list[list[int]]) -> None:
    flat = np.array([i for s in batch for i in s], dtype=np.int32)
    lengths = np.array([len(s) for s in batch], dtype=np.int32)
    assert pack(flat, lengths, last=3).tolist() == [i for s in batch for i in [*s, 3]]


@given(sentences)
def test_pack_prepends_the_begin_token_to_each_sentence(batch: list[list[int]]) -> None:
    flat = np.array([i for s in batch for i in s], dtype=np.int32)
    lengths = np.array([len(s) for s in batch], dtype=np.int32)
    assert pack(flat, lengths, first=2).tolist() == [i for s in batch for i in [2, *s]]
