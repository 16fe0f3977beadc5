"""Which sentences are computed together: the plan of an epoch, and the batches for decoding.

The plan is a pure function of lengths, seed, epoch and budget. It does not depend on the number of processes, so the
same updates are computed on one GPU with eight accumulation steps, on eight GPUs, or on four with two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dstransformer.config import BatchStage
from dstransformer.config.schema import BatchConfig
from dstransformer.errors import DataError, counted

Lengths = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

#: Pairs whose lengths are summed at once: planning takes little more memory than the order it makes.
_PART_PAIRS = 2**18


@dataclass(frozen=True)
class Position:
    """A position in the data: the next update to compute.

    Attributes:
        epoch: The epoch, from 0.
        update: The update within the window, from 0.
        window: The window within the epoch, from 0; always 0 if an epoch is planned as a whole.
    """

    epoch: int = 0
    update: int = 0
    window: int = 0


@dataclass(frozen=True)
class Budget:
    """The maximum tokens of an update on each side (section 5.1), and the number of its micro-batches.

    They depend only on where in the training the update begins, so the plan of an epoch needs no plan of those before.

    Attributes:
        src_tokens: Maximum source tokens.
        tgt_tokens: Maximum target tokens.
        micro_batches: Number of micro-batches.
        stages: Stages at the beginning of the training in which an update holds a share of these tokens.
    """

    src_tokens: int
    tgt_tokens: int
    micro_batches: int
    stages: tuple[BatchStage, ...] = ()

    def at(self, epochs: float) -> Budget:
        """The limits of an update that begins after so many epochs of training."""
        end = 0.0
        for stage in self.stages:
            end += stage.epochs
            if epochs < end:
                return self._take(stage)
        return self

    @property
    def smallest(self) -> Budget:
        """The limits of the stage with the fewest tokens."""
        return self._take(min(self.stages, key=lambda stage: stage.share)) if self.stages else self

    def _take(self, stage: BatchStage) -> Budget:
        src, tgt = (max(1, round(stage.share * tokens)) for tokens in (self.src_tokens, self.tgt_tokens))
        return replace(self, src_tokens=src, tgt_tokens=tgt)


def build_budget(batch: BatchConfig) -> Budget:
    """The limits of an update, from the configuration."""
    return Budget(batch.src_tokens, batch.tgt_tokens, batch.micro_batch_count, tuple(batch.stages))


def describe_stages(stages: Sequence[BatchStage], updates: Sequence[float]) -> str:
    """The stages in a line: ``25% of the tokens for 0.5 epochs (about 400 updates), then all``; empty without any.

    Args:
        stages: ``batch.stages``.
        updates: About how many updates each has.
    """
    described = [
        f"{100 * stage.share:g}% of the tokens for {stage.epochs:g} epoch{'' if stage.epochs == 1 else 's'} "
        f"(about {count:,.0f} updates)"
        for stage, count in zip(stages, updates, strict=True)
    ]
    return ", then ".join([*described, "all"]) if described else ""


@dataclass(frozen=True)
class EpochPlan:
    """The updates of an epoch, or of a window of one.

    Attributes:
        order: Their pairs, shuffled, ``(pairs,)`` int32. A mixture may repeat some and leave out others.
        bounds: Update ``u`` holds ``order[bounds[u] : bounds[u + 1]]``, ``(updates + 1,)`` int64.
    """

    order: npt.NDArray[np.int32]
    bounds: Indices

    @property
    def updates(self) -> int:
        """Number of updates."""
        return len(self.bounds) - 1

    def update(self, number: int) -> Indices:
        """The pairs of an update, in random order."""
        return self.order[self.bounds[number] : self.bounds[number + 1]].astype(np.int64)


def plan_epoch(
    src_lengths: Lengths,
    tgt_lengths: Lengths,
    seed: int,
    epoch: int,
    budget: Budget,
    rows: npt.NDArray[np.int32] | None = None,
) -> EpochPlan:
    """Divide a shuffled corpus into updates, see :func:`plan_updates`.

    Args:
        src_lengths: Source tokens of every pair, end of sentence included, ``(pairs,)``.
        tgt_lengths: Target tokens of every pair, end of sentence included, ``(pairs,)``.
        seed: The seed of the experiment.
        epoch: Number of the epoch, from 0.
        budget: Limits of an update.
        rows: The pairs of the epoch; None for every pair once.

    Raises:
        DataError: The corpus is empty, a single pair exceeds the budget, or an update holds fewer
            pairs than micro-batches.
    """
    check_lengths(src_lengths, tgt_lengths, budget)
    random = np.random.default_rng((seed, epoch))
    return plan_updates(src_lengths, tgt_lengths, random, budget, (epoch, epoch + 1), rows)


def plan_updates(
    src_lengths: Lengths,
    tgt_lengths: Lengths,
    random: np.random.Generator,
    budget: Budget,
    span: tuple[float, float],
    rows: npt.NDArray[np.int32] | None = None,
) -> EpochPlan:
    """Shuffle pairs and divide them into updates.

    An update takes as many of the next pairs in random order as fit into both budgets of the stage in which it begins.
    If the last update would be less than half full, the last two share their pairs evenly, where both budgets allow it.

    Args:
        src_lengths: Source tokens of every pair, end of sentence included, ``(pairs,)``. None exceeds the budget.
        tgt_lengths: Target tokens of every pair, end of sentence included, ``(pairs,)``.
        random: Draws the order.
        budget: Limits of an update.
        span: Where in the training the pairs begin and end, in epochs.
        rows: The pairs to take; None for every pair once.

    Raises:
        DataError: An update holds fewer pairs than micro-batches.
    """
    order = np.arange(len(src_lengths), dtype=np.int32) if rows is None else rows.copy()
    random.shuffle(order)

    def limits(first: int) -> Budget:
        return budget.at(span[0] + (span[1] - span[0]) * first / len(order))

    bounds = [0]
    while bounds[-1] < len(order):
        # A pair has a token at least, so a part of twice an update's tokens holds a whole update.
        first = bounds[-1]
        part = order[first : first + max(_PART_PAIRS, 2 * budget.src_tokens)]
        src_ends, tgt_ends = _ends(src_lengths, part), _ends(tgt_lengths, part)
        start = 0
        while start < len(part):
            limit = limits(first + start)
            src_before, tgt_before = (int(ends[start - 1]) if start else 0 for ends in (src_ends, tgt_ends))
            start = min(
                int(np.searchsorted(src_ends, src_before + limit.src_tokens, side="right")),
                int(np.searchsorted(tgt_ends, tgt_before + limit.tgt_tokens, side="right")),
            )
            if start < len(part) or first + start == len(order):
                bounds.append(first + start)
    _share_remainder(bounds, order, src_lengths, tgt_lengths, limits)
    smallest = int(np.diff(bounds).min())
    if smallest < budget.micro_batches:
        raised = "the shares of batch.stages" if budget.stages else "batch.src_tokens and batch.tgt_tokens"
        raise DataError(
            f"an update holds {counted(smallest, 'sentence pair')}, too few for batch.micro_batches = "
            f"{budget.micro_batches}: raise {raised}, or lower batch.micro_batches"
        )
    return EpochPlan(order, np.asarray(bounds, dtype=np.int64))


def cut_update(pairs: Indices, src_lengths: Lengths, tgt_lengths: Lengths, micro_batches: int) -> list[Indices]:
    """Cut an update by length into micro-batches of about equal numbers of tokens, none of them empty.

    The sentences of each have similar lengths (section 5.1). The result does not depend on the order of ``pairs``.

    Args:
        pairs: The pairs of the update.
        src_lengths: Source tokens of every pair of the corpus.
        tgt_lengths: Target tokens of every pair of the corpus.
        micro_batches: Their number, at most that of the pairs.
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

    Micro-batches of neighbouring lengths go to different ranks at the same accumulation step, so that all ranks take
    about the same time. The numbers also seed dropout, which therefore does not depend on the layout.
    """
    return list(range(rank, micro_batches, world_size))


def plan_batches(
    lengths: Sequence[int], batch_tokens: int, least_tokens: Callable[[int], int] = lambda _: 0
) -> list[list[int]]:
    """Batches of sentences of similar length to translate, the longest first; empty sentences are left out.

    Args:
        lengths: Tokens of each sentence, without its end.
        batch_tokens: Maximum tokens of a batch, ends included; a longer sentence is a batch of one.
        least_tokens: How many tokens each sentence of a batch counts for at least, given the tokens of the longest.

    Returns:
        The sentences of each batch, by their place in ``lengths``.
    """
    longest_first = sorted((number for number, length in enumerate(lengths) if length), key=lambda n: -lengths[n])
    batches: list[list[int]] = []
    room = least = 0
    for number in longest_first:
        tokens = lengths[number] + 1
        if max(tokens, least) > room:
            batches.append([])
            room, least = batch_tokens, least_tokens(tokens)
        batches[-1].append(number)
        room -= max(tokens, least)
    return batches


def check_lengths(src_lengths: Lengths, tgt_lengths: Lengths, budget: Budget, first: int = 0) -> None:
    """Refuse pairs that cannot be planned.

    Args:
        src_lengths: Source tokens of the pairs, end of sentence included.
        tgt_lengths: Target tokens of the pairs, end of sentence included.
        budget: Limits of an update.
        first: The number of the first of them in the training split.

    Raises:
        DataError: There are no pairs, or a single pair exceeds the budget.
    """
    if not len(src_lengths):
        raise DataError("the training split is empty: build the corpus again")
    least = budget.smallest
    for side, lengths, tokens in (("src", src_lengths, least.src_tokens), ("tgt", tgt_lengths, least.tgt_tokens)):
        number = int(lengths.argmax())
        if lengths[number] > tokens:
            limit, raised = f"batch.{side}_tokens = {getattr(budget, f'{side}_tokens')}", "it"
            if least != budget:
                limit, raised = f"{tokens} in a stage of batch.stages, {limit}", "its share"
            raise DataError(
                f"training pair {first + number} has {lengths[number]} {side} tokens, more than an update may hold "
                f"({limit}): raise {raised}, or build the corpus with a smaller --max-tokens"
            )


def _ends(lengths: Lengths, order: npt.NDArray[np.int32]) -> Indices:
    return np.cumsum(lengths[order], dtype=np.int64)


def _share_remainder(
    bounds: list[int],
    order: npt.NDArray[np.int32],
    src_lengths: Lengths,
    tgt_lengths: Lengths,
    limits: Callable[[int], Budget],
) -> None:
    """Move the last bound to the middle of the last two updates if the last is less than half full."""
    if len(bounds) < 3:
        return
    start, border, end = bounds[-3:]

    def fill(first: int, last: int) -> float:
        src, tgt = (int(lengths[order[first:last]].sum(dtype=np.int64)) for lengths in (src_lengths, tgt_lengths))
        limit = limits(first)
        return max(src / limit.src_tokens, tgt / limit.tgt_tokens)

    if fill(border, end) >= 0.5:
        return
    middle = start + (end - start) // 2
    if middle < border and fill(middle, end) <= 1.0:
        bounds[-2] = middle


@dataclass(frozen=True)
class LengthSums:
    """What the work on sentence pairs of lengths ``s`` (source) and ``t`` (target) depends on, summed over the pairs.

    Lengths are in tokens and include the end of the sentence. Sums of parts add up to that of the whole.

    Attributes:
        src_tokens: ``s``.
        tgt_tokens: ``t``.
        src_src: ``s²``, the queries times the keys of the encoder's self-attention.
        tgt_tgt: ``t (t + 1) / 2``, those of the decoder's self-attention: position ``i`` sees ``i`` keys.
        tgt_src: ``t s``, those of the attention over the memory.
    """

    src_tokens: int
    tgt_tokens: int
    src_src: int
    tgt_tgt: int
    tgt_src: int

    @classmethod
    def of(cls, src_lengths: npt.NDArray[np.integer], tgt_lengths: npt.NDArray[np.integer]) -> LengthSums:
        """The sums over sentence pairs, whose lengths are ``(pairs,)`` each."""
        src, tgt = src_lengths.astype(np.int64), tgt_lengths.astype(np.int64)
        return cls(
            src_tokens=int(src.sum()),
            tgt_tokens=int(tgt.sum()),
            src_src=int(src @ src),
            tgt_tgt=int(tgt @ (tgt + 1)) // 2,
            tgt_src=int(tgt @ src),
        )
