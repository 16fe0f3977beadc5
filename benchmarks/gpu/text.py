"""Synthetic sentence pairs with lengths as in WMT14 English-German, planned into updates as in training."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.lib.workload import sample_lengths
from dstransformer.data.loader import Update
from dstransformer.data.packing import PackedBatch, pack_pairs
from dstransformer.data.plan import Budget, LengthSums, Position, cut_update, plan_epoch

Lengths = npt.NDArray[np.int32]

#: Pieces of a sentence, about.
MEAN_PIECES = 30

#: Pieces with lower IDs are special.
FIRST_PIECE = 4


def draw_pieces(lengths: Lengths, vocabulary: int, seed: int) -> npt.NDArray[np.int32]:
    """Draw pieces for sentences of these lengths, concatenated. IDs are log-uniform, approximately Zipf's law."""
    uniform = np.random.default_rng(seed).random(int(lengths.sum(dtype=np.int64)))
    rank = np.exp(uniform * np.log(vocabulary - FIRST_PIECE)) - 1.0
    pieces: npt.NDArray[np.int32] = FIRST_PIECE + rank.astype(np.int32)
    return pieces


def build_updates(budget: Budget, count: int, vocabulary: int, seed: int = 1) -> list[Update]:
    """Build the first ``count`` updates of an epoch, as the data loader would for a single rank.

    Args:
        budget: Limits of an update, and its number of micro-batches.
        count: Number of updates.
        vocabulary: Size of the joint vocabulary.
        seed: Seed of the text and the plan.
    """
    pairs = 2 * (count + 1) * budget.tgt_tokens // MEAN_PIECES  # twice as many as fit
    src_lengths, tgt_lengths = (lengths + np.int32(1) for lengths in sample_lengths(pairs, seed))

    def build_batch(chosen: npt.NDArray[np.int64]) -> PackedBatch:
        src, tgt = src_lengths[chosen] - np.int32(1), tgt_lengths[chosen] - np.int32(1)
        first = int(chosen[0])
        return pack_pairs(draw_pieces(src, vocabulary, first), src, draw_pieces(tgt, vocabulary, first + pairs), tgt)

    plan = plan_epoch(src_lengths, tgt_lengths, seed, 0, budget)
    updates = []
    for number in range(count):
        chosen = plan.update(number)
        parts = cut_update(chosen, src_lengths, tgt_lengths, budget.micro_batches)
        updates.append(
            Update(
                position=Position(0, number),
                following=Position(0, number + 1),
                batches=[build_batch(part) for part in parts],
                sums=LengthSums.of(src_lengths[chosen], tgt_lengths[chosen]),
            )
        )
    return updates
