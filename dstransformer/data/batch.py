"""A packed batch: sentence pairs laid end to end, without padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dstransformer.data import BOS_ID, EOS_ID, Split
from dstransformer.data.packing import Links, Packing
from dstransformer.data.plan import Lengths

Ids = npt.NDArray[np.int32]


class PackedBatch(NamedTuple):
    """Sentence pairs: the arguments of ``Transformer.forward``, in its order.

    Attributes:
        src: Source tokens, each sentence with its end, ``(src_tokens,)`` int64.
        src_packing: The source sentences.
        tgt_in: The decoder's input, each target after the begin token, ``(tgt_tokens,)`` int64.
        tgt_out: The tokens to predict, each target with its end, ``(tgt_tokens,)`` int64.
        tgt_packing: The target sentences.
        links: The alignments that guide a head; None without.
    """

    src: Tensor
    src_packing: Packing
    tgt_in: Tensor
    tgt_out: Tensor
    tgt_packing: Packing
    links: Links | None = None

    def to(self, device: torch.device) -> PackedBatch:
        """The batch on another device; the copy from pinned memory overlaps with computation."""
        return PackedBatch(
            self.src.to(device, non_blocking=True),
            self.src_packing.to(device, non_blocking=True),
            self.tgt_in.to(device, non_blocking=True),
            self.tgt_out.to(device, non_blocking=True),
            self.tgt_packing.to(device, non_blocking=True),
            self.links and self.links.to(device),
        )

    def pin_memory(self) -> PackedBatch:
        """The batch in page-locked memory."""
        return PackedBatch(
            self.src.pin_memory(),
            self.src_packing.pin_memory(),
            self.tgt_in.pin_memory(),
            self.tgt_out.pin_memory(),
            self.tgt_packing.pin_memory(),
            self.links and self.links.pin_memory(),
        )


def build_batch(split: Split, pairs: npt.NDArray[np.int64]) -> PackedBatch:
    """Read the pairs with these numbers from a corpus and pack them."""
    return pack_pairs(*split.gather(pairs))


def pack_pairs(src_ids: Ids, src_lengths: Lengths, tgt_ids: Ids, tgt_lengths: Lengths) -> PackedBatch:
    """Pack sentence pairs, whose tokens and lengths come without begin and end."""
    return PackedBatch(
        src=pack(src_ids, src_lengths, last=EOS_ID),
        src_packing=Packing.from_lengths(src_lengths + 1),
        tgt_in=pack(tgt_ids, tgt_lengths, first=BOS_ID),
        tgt_out=pack(tgt_ids, tgt_lengths, last=EOS_ID),
        tgt_packing=Packing.from_lengths(tgt_lengths + 1),
    )


def pack(ids: Ids, lengths: Lengths, *, first: int | None = None, last: int | None = None) -> Tensor:
    """Put one special token before or after each sentence: ``(tokens,)`` to ``(tokens + n,)`` int64."""
    special = first if first is not None else last
    assert special is not None
    packed = np.full(len(ids) + len(lengths), special, dtype=np.int64)
    ends = np.cumsum(lengths + 1, dtype=np.int64)
    is_special = np.zeros(len(packed), dtype=bool)
    is_special[ends - 1 if first is None else ends - lengths - 1] = True
    packed[~is_special] = ids
    return torch.from_numpy(packed)
