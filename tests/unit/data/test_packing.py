from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dstransformer.data.packing import MAX_PADDING, Packing, group_lengths, pack, round_rows

LENGTH = st.integers(1, 60)


@given(st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=80))
def test_groups_hold_every_sentence_once_with_little_padding(lengths: list[tuple[int, int]]) -> None:
    queries, keys = zip(*lengths, strict=True)
    groups = group_lengths(queries, keys)
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    for group in groups:
        padded = len(group) * max(queries[n] for n in group) * max(keys[n] for n in group)
        assert padded <= (1 + MAX_PADDING) * sum(queries[n] * keys[n] for n in group)


@given(st.lists(LENGTH, min_size=1, max_size=80))
def test_from_lengths_sets_every_field(lengths: list[int]) -> None:
    for packing in (Packing.from_lengths(lengths), Packing.from_lengths(np.array(lengths, dtype=np.int32))):
        assert packing.cu.dtype == torch.int32
        assert packing.cu.tolist() == [sum(lengths[:number]) for number in range(len(lengths) + 1)]
        assert (packing.max_len, packing.tokens, packing.sentences) == (max(lengths), sum(lengths), len(lengths))
        assert packing.lengths.tolist() == lengths


@given(st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=1, max_size=8))
def test_pack_adds_a_token_before_or_after_each_sentence(batch: list[list[int]]) -> None:
    flat = np.array([token for sentence in batch for token in sentence], dtype=np.int32)
    lengths = np.array([len(sentence) for sentence in batch], dtype=np.int32)
    assert pack(flat, lengths, first=2).tolist() == [token for sentence in batch for token in [2, *sentence]]
    assert pack(flat, lengths, last=3).tolist() == [token for sentence in batch for token in [*sentence, 3]]


def test_sentences_of_one_length_are_one_group() -> None:
    assert group_lengths([7] * 5, [9] * 5) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("seed", range(3))
def test_join_reverses_split(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 30, 40)
    packing = Packing.from_lengths(lengths)
    order = packing.group(packing).queries
    x = torch.arange(packing.tokens * 2.0).view(-1, 2).requires_grad_()
    parts = order.split(x)
    starts = [
        part[first, 0] for group, part in zip(order.groups, parts, strict=True) for first in group.cu[:-1].tolist()
    ]
    assert sorted(starts) == [2 * first for first in packing.cu[:-1].tolist()]
    joined = order.join(parts)
    assert torch.equal(joined, x)
    weights = torch.randn_like(x)
    (joined * weights).sum().backward()
    assert torch.equal(x.grad, weights)  # type: ignore[arg-type]


def test_a_grouping_keeps_its_keys_alive() -> None:
    """Otherwise a new packing at the same address in memory would get their grouping."""
    queries, keys = Packing.from_lengths([3, 2]), Packing.from_lengths([3, 2])
    alive = weakref.ref(keys)
    queries.group(queries)
    queries.group(keys)
    del keys
    assert alive() is not None
    alone = weakref.ref(queries)
    del queries
    assert alone() is None, "a reference cycle keeps it alive"
    assert alive() is None


@pytest.mark.parametrize("counts", [16, 128])
def test_rounding_rows_adds_little_and_gives_few_distinct_values(counts: int) -> None:
    rounded = [round_rows(rows, counts) for rows in range(1 << 14)]
    assert all(0 <= more - rows < max(8, rows / counts) for rows, more in enumerate(rounded))
    for power in range(14):
        assert len(set(rounded[1 << power : 2 << power])) <= counts + 1
