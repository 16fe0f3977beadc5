"""Epochs planned in windows: the same guarantees as for whole epochs, with the lengths of one window in memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.corpora import Rows, write_corpus
from support.data.loading import build_loader, take

from dstransformer.data import Corpus, Split
from dstransformer.data.mixture import Mixture
from dstransformer.data.plan import Budget, Position, plan_epoch
from dstransformer.data.reader import Pairs
from dstransformer.data.subwords import BpeDropout
from dstransformer.data.windows import Planner, WindowPlanner, build_planner, check_split, training_lengths
from dstransformer.errors import ConfigError, DataError

PAIRS, LONGEST = 200, 12
BUDGET = Budget(100, 100, 4)
WINDOW = 40


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus of shards of three pairs."""
    rng = np.random.default_rng(5)

    def sentence() -> list[int]:
        pieces: list[int] = rng.integers(4, 340, rng.integers(1, LONGEST)).tolist()
        return pieces

    rows: Rows = [(sentence(), sentence()) for _ in range(PAIRS)]
    return Corpus.open(write_corpus(tmp_path_factory.mktemp("windows") / "corpus", rows))


@pytest.fixture(scope="module")
def split(corpus: Corpus) -> Split:
    return corpus.split("train")


def pairs_of(planner: Planner, epoch: int) -> list[list[np.ndarray]]:
    """The pairs of all updates of an epoch, window by window."""
    windows = (planner.plan(epoch, number) for number in range(planner.windows(epoch)))
    return [[window.update(number) for number in range(window.updates)] for window in windows]


def flat(windows: list[list[np.ndarray]]) -> np.ndarray:
    return np.concatenate([pair for window in windows for pair in window])


@settings(max_examples=60, deadline=None)
@given(st.integers(8, PAIRS), st.integers(1, 30), st.integers(0, 2**40), st.integers(0, 50))
def test_an_epoch_holds_every_pair_once_and_budgets_hold(
    split: Split, window_pairs: int, block_pairs: int, seed: int, epoch: int
) -> None:
    planner = WindowPlanner(split, Budget(100, 100, 1), seed, None, window_pairs, block_pairs)
    windows = pairs_of(planner, epoch)
    assert sorted(flat(windows)) == list(range(PAIRS))
    assert planner.pairs(epoch) == PAIRS
    src, tgt = training_lengths(split)
    for update in (update for window in windows for update in window):
        assert len(update)
        assert src[update].sum() <= 100
        assert tgt[update].sum() <= 100
    largest = max(sum(map(len, window)) for window in windows)
    assert largest <= max(window_pairs, block_pairs) + block_pairs, "the lengths of no more pairs are in memory"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(1, 9))
def test_a_window_is_planned_without_those_before_it(split: Split, seed: int, epoch: int, block_pairs: int) -> None:
    def build() -> WindowPlanner:
        return WindowPlanner(split, BUDGET, seed, None, WINDOW, block_pairs)

    whole = pairs_of(build(), epoch)
    last = build().plan(epoch, len(whole) - 1)
    assert [last.update(number).tolist() for number in range(last.updates)] == [pair.tolist() for pair in whole[-1]]


def test_seeds_epochs_and_windows_have_their_own_order(split: Split) -> None:
    orders = [flat(pairs_of(WindowPlanner(split, BUDGET, seed, None, WINDOW, 1), e)) for seed in (1, 2) for e in (0, 1)]
    assert len({order.tobytes() for order in orders}) == 4
    planner = WindowPlanner(split, BUDGET, 1, None, WINDOW, 1)
    first, second = planner.plan(0, 0).plan.order, planner.plan(0, 1).plan.order
    assert not np.array_equal(first, second)


def test_neighbours_go_to_different_windows_in_different_epochs(split: Split) -> None:
    planner = WindowPlanner(split, BUDGET, 1, None, WINDOW, 4)
    first, second = ({frozenset(np.concatenate(w).tolist()) for w in pairs_of(planner, epoch)} for epoch in (0, 1))
    assert len(first) == len(second) == PAIRS // WINDOW
    assert not first & second


@pytest.mark.parametrize("window_pairs", [0, PAIRS, 10 * PAIRS])
def test_a_corpus_that_fits_a_window_is_planned_as_a_whole(split: Split, window_pairs: int) -> None:
    planner = build_planner(split, BUDGET, 3, None, window_pairs)
    assert planner.windows(2) == 1
    window, plan = planner.plan(2, 0), plan_epoch(*training_lengths(split), 3, 2, BUDGET)
    assert [window.update(n).tolist() for n in range(window.updates)] == [
        plan.update(n).tolist() for n in range(plan.updates)
    ]


def test_a_mixture_weighs_the_blocks_of_its_sources(split: Split) -> None:
    sizes, weights = (120, 80), (0.5, 2.0)
    planner = WindowPlanner(split, Budget(100, 100, 1), 1, Mixture(sizes, (0,), (weights,)), WINDOW, 5)
    assert planner.windows(0) == -(-(60 + 160) // WINDOW)
    used = np.bincount(np.concatenate([flat(pairs_of(planner, epoch)) for epoch in range(2)]), minlength=PAIRS)
    assert set(used[:120]) == {1}
    assert set(used[120:]) == {4}
    assert planner.pairs(0) == 60 + 160


def test_a_mixture_without_a_whole_block_is_refused(split: Split) -> None:
    mixture = Mixture((120, 80), (0, 2), ((1.0, 0.0), (0.1, 0.1)))
    with pytest.raises(ConfigError, match="stage 2"):
        WindowPlanner(split, BUDGET, 1, mixture, WINDOW, 20)


def test_positions_go_through_windows_and_epochs(split: Split) -> None:
    loader = build_loader(split, BUDGET, window_pairs=WINDOW)
    expected = [
        Position(epoch, number, window)
        for epoch in range(2)
        for window in range(PAIRS // WINDOW)
        for number in range(loader.plan(epoch, window).updates)
    ]
    updates = take(loader, len(expected))
    assert [update.position for update in updates] == expected
    assert [update.following for update in updates] == [*expected[1:], Position(2, 0, 0)]
    pairs = Counter(np.concatenate([part for update in updates for part in update.pairs]).tolist())
    assert pairs == dict.fromkeys(range(PAIRS), 2)


def test_bpe_dropout_differs_between_windows_and_repeats(corpus: Corpus) -> None:
    dropout = BpeDropout(corpus.tokenizer, 0.5, 1, None)
    ids = corpus.tokenizer.encode(["The quick brown fox jumps over the lazy dog."])[0]
    flat_ids, lengths = np.array(ids, dtype=np.int32), np.array([len(ids)], dtype=np.int32)
    pairs = Pairs(flat_ids, lengths, flat_ids, lengths)
    sampled = [dropout.sample(pairs, Position(window=window), 0).src_ids.tolist() for window in (0, 1, 2, 1)]
    assert sampled[1] == sampled[3]
    assert len({tuple(one) for one in sampled}) == 3
    assert sampled[0] == dropout.sample(pairs, Position(), 0).src_ids.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, PAIRS), st.integers(0, PAIRS)), max_size=8))
def test_lengths_of_ranges_are_those_of_the_pairs(split: Split, ranges: list[tuple[int, int]]) -> None:
    ordered = [sorted(borders) for borders in ranges]
    begins, ends = (np.array([borders[side] for borders in ordered], dtype=np.int64) for side in (0, 1))
    rows = [row for begin, end in ordered for row in range(begin, end)]
    src, tgt = split.lengths(begins, ends)
    assert src.tolist() == split.src_lengths[rows].tolist()
    assert tgt.tolist() == split.tgt_lengths[rows].tolist()


@pytest.mark.parametrize("borders", [(-1, 3), (0, PAIRS + 1), (5, 4)])
def test_lengths_outside_of_the_split_are_refused(split: Split, borders: tuple[int, int]) -> None:
    with pytest.raises(IndexError, match=f"{PAIRS} pairs"):
        split.lengths(np.array(borders[:1]), np.array(borders[1:]))


def test_a_pair_that_no_update_holds_is_named(split: Split) -> None:
    src, tgt = training_lengths(split)
    check_split(split, Budget(int(src.max()), int(tgt.max()), 1))
    number = int(src.argmax())
    with pytest.raises(DataError, match=rf"pair {number} .*batch\.src_tokens"):
        check_split(split, Budget(int(src.max()) - 1, 100, 1))


def test_the_order_of_windows_is_that_of_this_version(tmp_path: Path) -> None:
    """A run in windows resumes in a later version only if the plan stays the same."""
    rows: Rows = [([4 + number], [5]) for number in range(12)]
    split = Corpus.open(write_corpus(tmp_path / "corpus", rows)).split("train")
    windows = pairs_of(WindowPlanner(split, Budget(8, 8, 1), 1, None, 6, 2), 1)
    assert [[update.tolist() for update in window] for window in windows] == [
        [[1, 10, 3, 2], [0, 11]],
        [[8, 5, 7, 9], [6, 4]],
    ]
