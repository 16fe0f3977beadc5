"""The loader yields the updates of the plan, the same from any start and on any number of ranks."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.corpora import Rows, write_corpus
from support.data.loading import build_loader, take
from torch import Tensor

from dstransformer.data import BOS_ID, EOS_ID, Corpus, Split
from dstransformer.data.loader import Update
from dstransformer.data.packing import PackedBatch, Packing
from dstransformer.data.plan import Budget, Position

LONGEST = 12
START = Position()
BUDGET = Budget(src_tokens=100, tgt_tokens=100, micro_batches=4)

Pair = tuple[tuple[int, ...], tuple[int, ...]]


def draw_rows(pairs: int) -> Rows:
    """Pairs of pieces; the first source piece is unique, so that no two pairs are equal."""
    rng = np.random.default_rng(3)

    def sentence(longest: int) -> list[int]:
        pieces: list[int] = rng.integers(4, 340, rng.integers(1, longest + 1)).tolist()
        return pieces

    return [([4 + number, *sentence(LONGEST - 2)], sentence(LONGEST - 1)) for number in range(pairs)]


ROWS = draw_rows(90)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Corpus.open(write_corpus(tmp_path_factory.mktemp("loader") / "corpus", ROWS)).split("train")


def sentences(flat: Tensor, packing: Packing) -> list[tuple[int, ...]]:
    return [tuple(sentence.tolist()) for sentence in flat.split(packing.lengths.tolist())]


def pairs_of(batch: PackedBatch) -> list[Pair]:
    """The corpus pairs in a batch; also checks the begin and end tokens that the batch adds to them."""
    src, tgt_in = sentences(batch.src, batch.src_packing), sentences(batch.tgt_in, batch.tgt_packing)
    tgt_out = sentences(batch.tgt_out, batch.tgt_packing)
    assert {sentence[-1] for sentence in (*src, *tgt_out)} == {EOS_ID}
    assert {sentence[0] for sentence in tgt_in} == {BOS_ID}
    assert [sentence[1:] for sentence in tgt_in] == [sentence[:-1] for sentence in tgt_out]
    return [(s[:-1], t[:-1]) for s, t in zip(src, tgt_out, strict=True)]


def contents(updates: list[Update]) -> list[list[list[Pair]]]:
    """The pairs of every micro-batch of every update."""
    return [[pairs_of(batch) for batch in update.batches] for update in updates]


def rows_of(indices: Any) -> Counter[Pair]:
    return Counter((tuple(ROWS[index][0]), tuple(ROWS[index][1])) for index in indices)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


budgets = st.builds(
    Budget, src_tokens=st.integers(70, 400), tgt_tokens=st.integers(70, 400), micro_batches=st.integers(1, 4)
)


@settings(max_examples=30, deadline=None)
@given(budgets, st.integers(0, 2**32), st.integers(0, 50), st.integers(1, 5))
def test_an_epoch_holds_every_pair_once_in_the_updates_of_its_plan(
    split: Split, budget: Budget, seed: int, epoch: int, prefetch: int
) -> None:
    loader = build_loader(split, budget, seed=seed, prefetch=prefetch)
    plan = loader.plan(epoch)
    updates = contents(take(loader, plan.updates, Position(epoch, 0)))
    found = [Counter(pair for batch in update for pair in batch) for update in updates]
    assert found == [rows_of(plan.update(number)) for number in range(plan.updates)]
    assert sum(found, Counter()) == rows_of(range(len(ROWS)))


def test_the_next_epoch_follows_the_last_update(split: Split) -> None:
    loader = build_loader(split, BUDGET)
    count = loader.plan(0).updates
    updates = take(loader, count + 2)
    within = [Position(0, number) for number in range(1, count)]
    assert [update.following for update in updates] == [*within, Position(1, 0), Position(1, 1), Position(1, 2)]
    after_the_border = [Counter(pair for batch in update for pair in batch) for update in contents(updates[count:])]
    assert after_the_border == [rows_of(loader.plan(1).update(number)) for number in range(2)]
    assert not np.array_equal(loader.plan(0).plan.order, loader.plan(1).plan.order)


@pytest.mark.parametrize("window_pairs", [0, 40])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), passed=st.integers(0, 25), prefetch=st.integers(1, 5))
def test_starting_from_a_position_continues_the_sequence(
    split: Split, window_pairs: int, seed: int, passed: int, prefetch: int
) -> None:
    whole = take(build_loader(split, BUDGET, seed=seed, window_pairs=window_pairs), passed + 4)
    start = whole[passed - 1].following if passed else START
    rest = take(build_loader(split, BUDGET, seed=seed, prefetch=prefetch, window_pairs=window_pairs), 4, start)
    assert contents(rest) == contents(whole[passed:])
    assert [update.position for update in rest] == [update.position for update in whole[passed:]]
    assert [update.following for update in rest] == [update.following for update in whole[passed:]]


@pytest.mark.parametrize("window_pairs", [0, 40])
@settings(max_examples=15, deadline=None)
@given(micro_batches=st.sampled_from([1, 2, 3, 4, 6]), seed=st.integers(0, 2**32))
def test_ranks_share_out_the_same_update_at_every_world_size(
    split: Split, window_pairs: int, micro_batches: int, seed: int
) -> None:
    budget = Budget(150, 150, micro_batches)
    alone = take(build_loader(split, budget, seed=seed, window_pairs=window_pairs), 5)
    for world_size in (size for size in range(1, micro_batches + 1) if micro_batches % size == 0):
        ranks = [
            take(
                build_loader(split, budget, seed=seed, rank=rank, world_size=world_size, window_pairs=window_pairs),
                5,
            )
            for rank in range(world_size)
        ]
        for whole, *shares in zip(alone, *ranks, strict=True):
            # At each accumulation step the ranks take the next micro-batches of the update, one each.
            dealt = [batch for step in zip(*(share.batches for share in shares), strict=True) for batch in step]
            assert [pairs_of(batch) for batch in dealt] == [pairs_of(batch) for batch in whole.batches]
            for share in shares:
                assert (share.position, share.following) == (whole.position, whole.following)
                assert share.sums == whole.sums, "every rank knows the cost of the whole update"
                assert share.src_tokens == sum(len(batch.src) for batch in dealt)
                assert share.tgt_tokens == sum(len(batch.tgt_out) for batch in dealt)


class DamagedSplit(Split):
    """A split with a pair that cannot be read."""

    damaged = -1

    def gather(self, indices: Any) -> Any:
        if self.damaged in indices:
            raise OSError("the disk is damaged")
        return super().gather(indices)


def test_a_background_failure_is_raised_when_its_update_is_due(split: Split) -> None:
    damaged = DamagedSplit(split.folder, split.info)
    loader = build_loader(damaged, BUDGET, prefetch=5)
    damaged.damaged = int(loader.plan(0).update(3)[0])
    updates = loader.iter_updates(START)
    assert contents(list(islice(updates, 3))) == contents(take(build_loader(split, BUDGET), 3))
    with pytest.raises(OSError, match="the disk is damaged"):
        next(updates)
    assert loader_threads() == []


def test_closing_early_leaves_no_thread_behind(split: Split) -> None:
    with closing(build_loader(split, BUDGET, prefetch=5).iter_updates(START)) as updates:
        next(updates)
        assert loader_threads()
    assert loader_threads() == []
