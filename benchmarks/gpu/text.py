"""Sentence pairs drawn like those of WMT14 English-German, cut into updates by the product's own plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dstransformer.corpus import BOS_ID, EOS_ID
from dstransformer.data import Budget, PackedBatch, Position, Update, cut_update, pack, plan_epoch

Lengths = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

#: Pieces a sentence on each side, on average; the shape of their gamma distribution; and the most there are.
MEAN_PIECES = 28.0
SHAPE = 2.2
MAX_PIECES = 200

#: How far the two sides of a pair differ in length: the standard deviation of the logarithm of each.
SIDE_DEVIATION = 0.15

#: Pieces below this number are special.
FIRST_PIECE = 4


@dataclass(frozen=True)
class Text:
    """Lengths of sentence pairs in pieces, without begin and end, ``(pairs,)`` each."""

    src_lengths: Lengths
    tgt_lengths: Lengths
    vocabulary: int
    seed: int

    def draw_pieces(self, lengths: Lengths, salt: int) -> npt.NDArray[np.int32]:
        """Pieces for sentences of these lengths, end to end; their numbers are log-uniform, so about Zipf's law."""
        rng = np.random.default_rng((self.seed, salt))
        uniform = rng.random(int(lengths.sum(dtype=np.int64)))
        rank = np.exp(uniform * np.log(self.vocabulary - FIRST_PIECE)) - 1.0
        pieces: npt.NDArray[np.int32] = FIRST_PIECE + rank.astype(np.int32)
        return pieces


def draw_text(pairs: int, vocabulary: int, seed: int = 1) -> Text:
    """Draw pairs of a common length, gamma distributed, from which each side differs a little."""
    rng = np.random.default_rng(seed)
    common = rng.gamma(SHAPE, MEAN_PIECES / SHAPE, pairs)
    src, tgt = (
        np.clip(np.rint(common * rng.lognormal(0.0, SIDE_DEVIATION, pairs)), 1, MAX_PIECES).astype(np.int32)
        for _ in range(2)
    )
    return Text(src, tgt, vocabulary, seed)


def build_updates(budget: Budget, count: int, vocabulary: int, seed: int = 1) -> list[Update]:
    """The first ``count`` updates of an epoch, as the product's loader would hand them to one rank.

    Args:
        budget: Limits of an update and the number of its micro-batches.
        count: Updates wanted.
        vocabulary: Pieces that both languages share.
        seed: Of text and plan.
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
                following=Position(0, number + 1),
                batches=[_build_batch(text, part) for part in parts],
                src_tokens=int(src_lengths[chosen].sum(dtype=np.int64)),
                tgt_tokens=int(tgt_lengths[chosen].sum(dtype=np.int64)),
            )
        )
    return updates


def _build_batch(text: Text, pairs: Indices) -> PackedBatch:
    src_lengths, tgt_lengths = text.src_lengths[pairs], text.tgt_lengths[pairs]
    src, tgt = text.draw_pieces(src_lengths, int(pairs[0])), text.draw_pieces(tgt_lengths, int(pairs[-1]) + 1)
    return PackedBatch(
        src=pack(src, src_lengths, last=EOS_ID),
        src_cu=_cumulative(src_lengths + 1),
        src_max=int(src_lengths.max()) + 1,
        tgt_in=pack(tgt, tgt_lengths, first=BOS_ID),
        tgt_out=pack(tgt, tgt_lengths, last=EOS_ID),
        tgt_cu=_cumulative(tgt_lengths + 1),
        tgt_max=int(tgt_lengths.max()) + 1,
    )


def _cumulative(lengths: npt.NDArray[np.integer]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
