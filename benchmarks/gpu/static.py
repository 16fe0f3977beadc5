"""Packed batches of one shape: what lets ``torch.compile`` meet a shape once (and a CUDA graph meet it again)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dstransformer.corpus import PAD_ID
from dstransformer.data import PackedBatch, Update

#: Token counts and the number of sentences are rounded up to multiples of these.
TOKEN_MULTIPLE = 128
SENTENCE_MULTIPLE = 64

#: Fill tokens of a side at least, so that no fill sentence lacks a source to attend to.
LEAST_FILL = 32


@dataclass(frozen=True)
class Shape:
    """What a filled batch holds: tokens and longest sentence of each side, and sentences, empty ones included."""

    src_tokens: int
    src_max: int
    tgt_tokens: int
    tgt_max: int
    sentences: int


def common_shape(updates: Sequence[Update]) -> Shape:
    """The smallest shape, rounded up, that every micro-batch of these updates can be filled up to."""
    batches = [batch for update in updates for batch in update.batches]
    shape = Shape(
        src_tokens=_round_up(max(batch.src.numel() for batch in batches) + LEAST_FILL, TOKEN_MULTIPLE),
        src_max=max(batch.src_max for batch in batches),
        tgt_tokens=_round_up(max(batch.tgt_in.numel() for batch in batches) + LEAST_FILL, TOKEN_MULTIPLE),
        tgt_max=max(batch.tgt_max for batch in batches),
        sentences=0,
    )
    sentences = max(batch.src_cu.numel() - 1 + _fill_sentences(batch, shape) for batch in batches)
    return replace(shape, sentences=_round_up(sentences, SENTENCE_MULTIPLE))


def fill(batch: PackedBatch, shape: Shape) -> PackedBatch:
    """The batch with sentences of padding after its own, none longer than ``shape`` says, and then empty ones.

    Sentences attend to themselves only, so the others are computed as before. The filling is in the loss, whose shapes
    are then the same too: the time is that of training, the gradient is not. Do not train with it.

    Raises:
        ValueError: The batch holds more than the shape.
    """
    count = _fill_sentences(batch, shape)
    empty = shape.sentences - (batch.src_cu.numel() - 1) - count
    src_fill, tgt_fill = shape.src_tokens - batch.src.numel(), shape.tgt_tokens - batch.tgt_in.numel()
    if empty < 0 or min(src_fill, tgt_fill) < count or batch.src_max > shape.src_max or batch.tgt_max > shape.tgt_max:
        raise ValueError(f"a batch of {batch.src_cu.numel() - 1} sentences does not fit into {shape}")
    return PackedBatch(
        src=_extend(batch.src, src_fill),
        src_cu=_extend_cumulative(batch.src_cu, src_fill, count, empty),
        src_max=shape.src_max,
        tgt_in=_extend(batch.tgt_in, tgt_fill),
        tgt_out=_extend(batch.tgt_out, tgt_fill),
        tgt_cu=_extend_cumulative(batch.tgt_cu, tgt_fill, count, empty),
        tgt_max=shape.tgt_max,
    )


def fill_updates(updates: Iterable[Update], shape: Shape) -> list[Update]:
    """Updates whose micro-batches all have this shape; their token counts stay those of the real tokens."""
    return [replace(update, batches=[fill(batch, shape) for batch in update.batches]) for update in updates]


def _fill_sentences(batch: PackedBatch, shape: Shape) -> int:
    src_fill, tgt_fill = shape.src_tokens - batch.src.numel(), shape.tgt_tokens - batch.tgt_in.numel()
    return max(-(-src_fill // shape.src_max), -(-tgt_fill // shape.tgt_max))


def _extend(ids: Tensor, count: int) -> Tensor:
    return torch.cat((ids, ids.new_full((count,), PAD_ID)))


def _extend_cumulative(cu: Tensor, tokens: int, sentences: int, empty: int) -> Tensor:
    """Deal ``tokens`` evenly to ``sentences`` after the last, and add empty ones."""
    ends = torch.arange(1, sentences + 1) * tokens // sentences
    added = torch.cat((ends, ends.new_full((empty,), tokens)))
    return torch.cat((cu, (cu[-1] + added).to(cu.dtype)))


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
