"""Synthetic sentence pairs with lengths as in WMT14 English-German, planned into updates as in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstransformer.data.loader import Update
from dstransformer.data.packing import PackedBatch, pack_pairs
from dstransformer.data.plan import Budget, LengthSums, Position, cut_update, plan_epoch

Lengths = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

#: Pieces per sentence and side: mean, shape of the gamma distribution, and maximum.
MEAN_PIECES = 28.0
SHAPE = 2.2
MAX_PIECES = 200

#: How much the two sides of a pair differ in length: standard deviation of the logarithm of each length.
SIDE_DEVIATION = 0.15

#: Pieces with lower IDs are special.
FIRST_PIECE = 4


@dataclass(frozen=True)
class Text:
    """Lengths of sentence pairs in pieces, ``(pairs,)`` each, without begin and end of sentence."""

    src_lengths: Lengths
    tgt_lengths: Lengths
    vocabulary: int
    seed: int

    def draw_pieces(self, lengths: Lengths, salt: int) -> npt.NDArray[np.int32]:
        """Draw pieces for sentences of these lengths, concatenated. IDs are log-uniform, approximately Zipf's law."""
        rng = np.random.default_rng((self.seed, salt))
        uniform = rng.random(int(lengths.sum(dtype=np.int64)))
        rank = np.exp(uniform * np.log(self.vocabulary - FIRST_PIECE)) - 1.0
        pieces: npt.NDArray[np.int32] = FIRST_PIECE + rank.astype(np.int32)
        return pieces


def draw_text(pairs: int, vocabulary: int, seed: int = 1) -> Text:
    """Draw pairs: each has a gamma-distributed length, from which both sides deviate a little."""
    rng = np.random.default_rng(seed)
    common = rng.gamma(SHAPE, MEAN_PIECES / SHAPE, pairs)
    src, tgt = (
        np.clip(np.rint(common * rng.lognormal(0.0, SIDE_DEVIATION, pairs)), 1, MAX_PIECES).astype(np.int32)
        for _ in range(2)
    )
    return Text(src, tgt, vocabulary, seed)


def build_updates(budget: Budget, count: int, vocabulary: int, seed: int = 1) -> list[Update]:
    """Build the first ``count`` updates of an epoch, as the data loader would for a single rank.

    Args:
        budget: Limits of an update, and its number of micro-batches.
        count: Number of updates.
        vocabulary: Size of the joint vocabulary.
        seed: Seed of the text and the plan.
    """
    pairs = 2 * (count + 1) * budget.tgt_tokens // int(MEAN_PIECES)  # twice as many as fit
    text = draw_text(pairs, vocabulary, seed)
    src_lengths, tgt_lengths = text.src_lengths + np.int32(1), text.tgt_lengths + np.int32(1)
    plan = plan_epoch(src_lengths, tgt_lengths, seed, 0, budget)
    updates = []
    for number in range(count):
        chosen = plan.update(number)
        parts = cut_update(chosen, src_lengths, tgt_lengths, budget.micro_batches)
        updates.append(
            Update(
                position=Position(0, number),
                following=Position(0, number + 1),
                batches=[_build_batch(text, part) for part in parts],
                sums=LengthSums.of(src_lengths[chosen], tgt_lengths[chosen]),
            )
        )
    return updates


def _build_batch(text: Text, pairs: Indices) -> PackedBatch:
    src_lengths, tgt_lengths = text.src_lengths[pairs], text.tgt_lengths[pairs]
    src, tgt = text.draw_pieces(src_lengths, int(pairs[0])), text.draw_pieces(tgt_lengths, int(pairs[-1]) + 1)
    return pack_pairs(src, src_lengths, tgt, tgt_lengths)
