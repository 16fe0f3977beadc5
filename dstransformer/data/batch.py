"""A packed batch: sentence pairs laid end to end, no padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dstransformer.corpus import BOS_ID, EOS_ID, Split

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PackedBatch:
    """``n`` sentence pairs.

    Attributes:
        src: Source tokens, each sentence with its end, ``(src_tokens,)`` int64.
        src_cu: Cumulative source lengths, ``(n + 1,)`` int32.
        src_max: The longest source.
        tgt_in: The decoder's input, each target after its begin, ``(tgt_tokens,)`` int64.
        tgt_out: What it is to predict, each target with its end, ``(tgt_tokens,)`` int64.
        tgt_cu: Cumulative target lengths, ``(n + 1,)`` int32.
        tgt_max: The longest target.
    """

    src: Tensor
    src_cu: Tensor
    src_max: int
    tgt_in: Tensor
    tgt_out: Tensor
    tgt_cu: Tensor
    tgt_max: int

    def to(self, device: torch.device) -> PackedBatch:
        """The batch on another device; the copy overlaps where the memory is pinned."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> PackedBatch:
        """The batch in page-locked memory."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> PackedBatch:
        return replace(
            self,
            src=function(self.src),
            src_cu=function(self.src_cu),
            tgt_in=function(self.tgt_in),
            tgt_out=function(self.tgt_out),
            tgt_cu=function(self.tgt_cu),
        )

    def arguments(self) -> tuple[Tensor, Tensor, int, Tensor, Tensor, Tensor, int]:
        """The arguments of ``Transformer.forward``."""
        return self.src, self.src_cu, self.src_max, self.tgt_in, self.tgt_out, self.tgt_cu, self.tgt_max


def build_batch(split: Split, pairs: npt.NDArray[np.int64]) -> PackedBatch:
    """Read the pairs of these numbers from a corpus and pack them."""
    src_ids, src_lengths, tgt_ids, tgt_lengths = split.gather(pairs)
    src_cu, tgt_cu = _cumulative(src_lengths + 1), _cumulative(tgt_lengths + 1)
    return PackedBatch(
        src=pack(src_ids, src_lengths, last=EOS_ID),
        src_cu=torch.from_numpy(src_cu),
        src_max=int(src_lengths.max()) + 1,
        tgt_in=pack(tgt_ids, tgt_lengths, first=BOS_ID),
        tgt_out=pack(tgt_ids, tgt_lengths, last=EOS_ID),
        tgt_cu=torch.from_numpy(tgt_cu),
        tgt_max=int(tgt_lengths.max()) + 1,
    )


def pack(ids: Ids, lengths: npt.NDArray[np.int32], *, first: int | None = None, last: int | None = None) -> Tensor:
    """Put one special token before or after each sentence: ``(tokens,)`` to ``(tokens + n,)`` int64."""
    special = first if first is not None else last
    assert special is not None
    packed = np.full(len(ids) + len(lengths), special, dtype=np.int64)
    ends = np.cumsum(lengths + 1, dtype=np.int64)
    is_special = np.zeros(len(packed), dtype=bool)
    is_special[ends - 1 if first is None else ends - lengths - 1] = True
    packed[~is_special] = ids
    return torch.from_numpy(packed)


def _cumulative(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
