"""Pads packed batches to one shape, so that ``torch.compile`` compiles once and CUDA graphs can be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dstransformer.data import PAD_ID
from dstransformer.data.loader import Update
from dstransformer.data.packing import PackedBatch, Packing

#: Token counts and the number of sentences are rounded up to multiples of these.
TOKEN_MULTIPLE = 128
SENTENCE_MULTIPLE = 64

#: Minimum number of fill tokens per side, so that every fill sentence has a source to attend to.
MIN_FILL = 32


@dataclass(frozen=True)
class Shape:
    """The shape of a filled batch: tokens and maximum length on each side, and sentences, including empty ones."""

    src_tokens: int
    src_max: int
    tgt_tokens: int
    tgt_max: int
    sentences: int


def common_shape(updates: Sequence[Update]) -> Shape:
    """The smallest shape, rounded up, that fits every micro-batch of these updates."""
    batches = [batch for update in updates for batch in update.batches]
    shape = Shape(
        src_tokens=_round_up(max(batch.src.numel() for batch in batches) + MIN_FILL, TOKEN_MULTIPLE),
        src_max=max(batch.src_packing.max_len for batch in batches),
        tgt_tokens=_round_up(max(batch.tgt_in.numel() for batch in batches) + MIN_FILL, TOKEN_MULTIPLE),
        tgt_max=max(batch.tgt_packing.max_len for batch in batches),
        sentences=0,
    )
    sentences = max(batch.src_packing.sentences + _fill_sentences(batch, shape) for batch in batches)
    return replace(shape, sentences=_round_up(sentences, SENTENCE_MULTIPLE))


def fill(batch: PackedBatch, shape: Shape) -> PackedBatch:
    """Append sentences of padding to a batch, within the maximum lengths of ``shape``, and then empty sentences.

    Sentences attend only to themselves, so the real ones are computed as before. The loss includes the fill tokens, to
    keep its shapes fixed as well. So the time is that of training, but the gradient is wrong: do not train with it.

    Raises:
        ValueError: The batch does not fit into the shape.
    """
    count = _fill_sentences(batch, shape)
    src, tgt = batch.src_packing, batch.tgt_packing
    empty = shape.sentences - src.sentences - count
    src_fill, tgt_fill = shape.src_tokens - batch.src.numel(), shape.tgt_tokens - batch.tgt_in.numel()
    if empty < 0 or min(src_fill, tgt_fill) < count or src.max_len > shape.src_max or tgt.max_len > shape.tgt_max:
        raise ValueError(f"a batch of {src.sentences} sentences does not fit into {shape}")
    return PackedBatch(
        src=_extend(batch.src, src_fill),
        src_packing=_extend_packing(src, shape.src_max, src_fill, count, empty),
        tgt_in=_extend(batch.tgt_in, tgt_fill),
        tgt_out=_extend(batch.tgt_out, tgt_fill),
        tgt_packing=_extend_packing(tgt, shape.tgt_max, tgt_fill, count, empty),
    )


def fill_updates(updates: Iterable[Update], shape: Shape) -> list[Update]:
    """Fill all micro-batches to one shape. The token counts of the updates still count real tokens only."""
    return [replace(update, batches=[fill(batch, shape) for batch in update.batches]) for update in updates]


def _fill_sentences(batch: PackedBatch, shape: Shape) -> int:
    src_fill, tgt_fill = shape.src_tokens - batch.src.numel(), shape.tgt_tokens - batch.tgt_in.numel()
    return max(-(-src_fill // shape.src_max), -(-tgt_fill // shape.tgt_max))


def _extend(ids: Tensor, count: int) -> Tensor:
    return torch.cat((ids, ids.new_full((count,), PAD_ID)))


def _extend_packing(packing: Packing, max_len: int, tokens: int, sentences: int, empty: int) -> Packing:
    """Deal ``tokens`` evenly to ``sentences`` after the last, and add empty ones; all have the same ``max_len``."""
    ends = torch.arange(1, sentences + 1) * tokens // sentences
    added = torch.cat((ends, ends.new_full((empty,), tokens)))
    cu = torch.cat((packing.cu, (packing.cu[-1] + added).to(packing.cu.dtype)))
    return Packing(cu, max_len, packing.tokens + tokens)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
