"""Properties of the plan, on generated corpora; those of updates and budgets stand in ``test_batch_stages``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstransformer.data import plan as plan_module
from dstransformer.data.plan import Budget, cut_update, deal, plan_batches, plan_epoch
from dstransformer.errors import DataError

LONGEST = 30


@st.composite
def corpora(draw: Any) -> tuple[Any, Any]:
    pairs = draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return tuple(rng.integers(1, LONGEST + 1, pairs, dtype=np.int32) for _ in range(2))


@given(st.integers(2, 8).flatmap(lambda n: st.tuples(corpora(), st.just(n))))
def test_an_update_is_cut_into_even_parts_of_similar_lengths(case: Any) -> None:
    (src, tgt), parts_wanted = case
    if len(src) < parts_wanted:
        return
    pairs = np.random.default_rng(0).permutation(len(src)).astype(np.int64)
    parts = cut_update(pairs, src, tgt, parts_wanted)
    assert len(parts) == parts_wanted
    assert sorted(np.concatenate(parts)) == sorted(pairs)
    longest = [np.maximum(src[part], tgt[part]) for part in parts]
    for shorter, longer in pairwise(longest):
        assert shorter.max() <= longer.min()
    if len(src) > 10 * parts_wanted:
        tokens = [int((src[part] + tgt[part]).sum()) for part in parts]
        assert max(tokens) - min(tokens) <= 4 * LONGEST


@given(corpora(), st.sampled_from([1, 2, 4, 8]))
def test_micro_batches_are_dealt_once_and_evenly_at_any_world_size(lengths: Any, world_size: int) -> None:
    src, tgt = lengths
    if len(src) < 8:
        return
    parts = cut_update(np.arange(len(src)), src, tgt, 8)
    dealt = [number for rank in range(world_size) for number in deal(8, rank, world_size)]
    assert sorted(dealt) == list(range(len(parts)))
    assert all(len(deal(8, rank, world_size)) == 8 // world_size for rank in range(world_size))


def test_each_epoch_and_seed_has_its_own_order() -> None:
    lengths = np.full(1000, 5, dtype=np.int32)
    budget = Budget(100, 100, 1)
    orders = [plan_epoch(lengths, lengths, seed, epoch, budget).order for seed in (1, 2) for epoch in (0, 1)]
    assert len({order.tobytes() for order in orders}) == 4


def test_lengths_are_summed_in_parts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    src, tgt = np.random.default_rng(0).integers(1, LONGEST, (2, 5000), dtype=np.int32)
    budget = Budget(60, 70, 1)
    plans = [plan_epoch(src, tgt, 1, 0, budget)]
    for size in (1, 131, 4999, 5000):
        monkeypatch.setattr(plan_module, "_PART_PAIRS", size)
        plans.append(plan_epoch(src, tgt, 1, 0, budget))
    assert plans[0].updates > 1000
    for plan in plans[1:]:
        np.testing.assert_array_equal(plan.order, plans[0].order)
        np.testing.assert_array_equal(plan.bounds, plans[0].bounds)


def test_a_remainder_is_shared_with_the_previous_update() -> None:
    lengths = np.full(21, 10, dtype=np.int32)
    plan = plan_epoch(lengths, lengths, 1, 0, Budget(100, 100, 1))
    assert np.diff(plan.bounds).tolist() == [10, 5, 6]


@pytest.mark.parametrize(("lengths", "budget", "message"), [
    ([5, 40, 5], Budget(30, 99, 1), "training pair 1 has 40 src tokens.*batch.src_tokens = 30"),
    ([5, 40, 5], Budget(99, 30, 1), "training pair 1 has 40 tgt tokens.*batch.tgt_tokens = 30"),
    ([5, 4, 5], Budget(99, 99, 4), "an update holds 3 sentence pairs.*batch.micro_batches = 4"),
    ([], Budget(99, 99, 1), "the training split is empty"),
])  # fmt: skip
def test_corpora_that_cannot_be_planned_are_refused(lengths: list[int], budget: Budget, message: str) -> None:
    array = np.array(lengths, dtype=np.int32)
    with pytest.raises(DataError, match=message):
        plan_epoch(array, array, 1, 0, budget)


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(1, 30))
def test_batches_hold_every_sentence_once_within_the_budget(lengths: list[int], batch_tokens: int) -> None:
    batches = plan_batches(lengths, batch_tokens)
    placed = [number for batch in batches for number in batch]
    assert sorted(placed) == [number for number, length in enumerate(lengths) if length]
    assert [lengths[number] for number in placed] == sorted((length for length in lengths if length), reverse=True)
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[number] + 1 for number in batch) <= batch_tokens
