"""The plan of an epoch: a pure function of lengths, seed, epoch and budgets.

It does not know how many processes there are, so that the same updates are computed on one GPU with eight accumulation
steps, on eight GPUs, or on four with two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstransformer.config import BatchConfig
from dstransformer.errors import DataError

Lengths = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Budget:
    """The most tokens an update may hold on each side (section 5.1), and the parts it is cut into."""

    src_tokens: int
    tgt_tokens: int
    micro_batches: int


def build_budget(batch: BatchConfig) -> Budget:
    """The limits of an update, from the configuration."""
    return Budget(batch.src_tokens, batch.tgt_tokens, batch.micro_batches)


@dataclass(frozen=True)
class EpochPlan:
    """The updates of one epoch; every pair is in exactly one of them.

    Attributes:
        order: The pairs, shuffled, ``(pairs,)`` int32.
        bounds: Update ``u`` holds ``order[bounds[u] : bounds[u + 1]]``, ``(updates + 1,)`` int64.
    """

    order: npt.NDArray[np.int32]
    bounds: Indices

    @property
    def updates(self) -> int:
        """Number of updates of the epoch."""
        return len(self.bounds) - 1

    def update(self, number: int) -> Indices:
        """The pairs of an update, in random order."""
        return self.order[self.bounds[number] : self.bounds[number + 1]].astype(np.int64)


def plan_epoch(src_lengths: Lengths, tgt_lengths: Lengths, seed: int, epoch: int, budget: Budget) -> EpochPlan:
    """Deal a shuffled corpus out to updates.

    Going through the pairs in random order, an update takes as many as fit into both budgets. The last two updates
    share their pairs evenly where the last would be less than half full, so that no update is a mere remainder.

    Args:
        src_lengths: Source tokens of every pair, end of sentence included, ``(pairs,)``.
        tgt_lengths: Target tokens of every pair, end of sentence included, ``(pairs,)``.
        seed: Of the experiment.
        epoch: Number of the epoch, from 0.
        budget: Limits of an update.

    Raises:
        DataError: There are no pairs, a pair exceeds the budget on its own, or an update holds fewer pairs than it is
            to have micro-batches.
    """
    check_lengths(src_lengths, tgt_lengths, budget)
    order = np.random.default_rng((seed, epoch)).permutation(np.arange(len(src_lengths), dtype=np.int32))
    src_ends = _ends(src_lengths, order)
    tgt_ends = _ends(tgt_lengths, order)
    bounds = [0]
    while (start := bounds[-1]) < len(order):
        src_before = src_ends[start - 1] if start else 0
        tgt_before = tgt_ends[start - 1] if start else 0
        fits = min(
            np.searchsorted(src_ends, src_before + budget.src_tokens, side="right"),
            np.searchsorted(tgt_ends, tgt_before + budget.tgt_tokens, side="right"),
        )
        bounds.append(int(fits))
    _share_remainder(bounds, src_ends, tgt_ends, budget)
    smallest = int(np.diff(bounds).min())
    if smallest < budget.micro_batches:
        raise DataError(
            f"an update holds {smallest} sentence pairs, too few for batch.micro_batches = {budget.micro_batches}: "
            "raise batch.src_tokens and batch.tgt_tokens, or lower batch.micro_batches"
        )
    return EpochPlan(order, np.asarray(bounds, dtype=np.int64))


def cut_update(pairs: Indices, src_lengths: Lengths, tgt_lengths: Lengths, micro_batches: int) -> list[Indices]:
    """Cut an update by length into ``micro_batches`` parts of about equally many tokens, none of them empty.

    The sentences of a part have about the same length (section 5.1). The result is a function of the set of pairs.

    Args:
        pairs: The pairs of the update.
        src_lengths: Of every pair of the corpus.
        tgt_lengths: Of every pair of the corpus.
        micro_batches: Number of parts, at most the number of pairs.
    """
    src, tgt = src_lengths[pairs], tgt_lengths[pairs]
    by_length = np.lexsort((pairs, src, tgt, np.maximum(src, tgt)))
    ends = np.cumsum(src[by_length].astype(np.int64) + tgt[by_length])
    shares = ends[-1] * np.arange(1, micro_batches) / micro_batches
    cuts = np.searchsorted(ends, shares, side="left") + 1
    least = np.arange(1, micro_batches)
    cuts = np.maximum.accumulate(np.maximum(cuts, least) - least) + least  # at least one pair before each cut
    cuts = np.minimum(cuts, len(pairs) - least[::-1])  # and after it
    return np.split(pairs[by_length], cuts)


def deal(micro_batches: int, rank: int, world_size: int) -> list[int]:
    """The micro-batches that ``rank`` computes, in order of its accumulation steps.

    Neighbours in length go to different ranks at the same accumulation step, so that all of them work equally long.
    """
    return list(range(rank, micro_batches, world_size))


def check_lengths(src_lengths: Lengths, tgt_lengths: Lengths, budget: Budget) -> None:
    """Refuse a split that cannot be planned: DataError where it is empty or a pair exceeds the budget on its own."""
    if not len(src_lengths):
        raise DataError("the training split holds no sentence pairs: build the corpus again")
    for side, lengths, tokens in (("src", src_lengths, budget.src_tokens), ("tgt", tgt_lengths, budget.tgt_tokens)):
        longest = int(lengths.max())
        if longest > tokens:
            raise DataError(
                f"training pair {int(lengths.argmax())} has {longest} {side} tokens, more than an update may hold "
                f"(batch.{side}_tokens = {tokens}): raise it, or build the corpus with a smaller --max-tokens"
            )


def _ends(lengths: Lengths, order: npt.NDArray[np.int32]) -> Indices:
    return np.cumsum(lengths[order], dtype=np.int64)


def _share_remainder(bounds: list[int], src_ends: Indices, tgt_ends: Indices, budget: Budget) -> None:
    """Move the last border back to the middle of the last two updates, where the last is less than half full."""
    if len(bounds) < 3:
        return
    start, border, end = bounds[-3:]

    def fill(first: int, last: int) -> float:
        src, tgt = (int(ends[last - 1] - (ends[first - 1] if first else 0)) for ends in (src_ends, tgt_ends))
        return max(src / budget.src_tokens, tgt / budget.tgt_tokens)

    if fill(border, end) >= 0.5:
        return
    middle = start + (end - start) // 2
    if middle < border and fill(middle, end) <= 1.0:
        bounds[-2] = middle
