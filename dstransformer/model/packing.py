"""Packed batches: sentences laid end to end, and the way to a padded layout and back where a kernel needs one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where each sentence of a packed batch begins and ends.

    Attributes:
        cu: Cumulative lengths, ``(n + 1,)`` int32; sentence ``i`` holds the tokens ``cu[i] : cu[i + 1]``.
        max_len: Length of the longest sentence.
        tokens: Number of tokens of the batch, ``cu[-1]``.
    """

    cu: Tensor
    max_len: int
    tokens: int

    @property
    def sentences(self) -> int:
        """Number of sentences, ``n``."""
        return self.cu.numel() - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, ``(n,)`` int64."""
        return self.cu.diff().long()

    @cached_property
    def _sentence_of(self) -> Tensor:
        numbers = torch.arange(self.sentences, device=self.cu.device)
        return numbers.repeat_interleave(self.lengths, output_size=self.tokens)

    @cached_property
    def positions(self) -> Tensor:
        """Place of each token in its sentence, from 0, ``(tokens,)`` int64."""
        return torch.arange(self.tokens, device=self.cu.device) - self.cu[:-1].long()[self._sentence_of]

    @cached_property
    def padded_index(self) -> Tensor:
        """Row of each token in the padded layout ``(n * max_len, ...)``, ``(tokens,)`` int64."""
        return self._sentence_of * self.max_len + self.positions

    @cached_property
    def padding_mask(self) -> Tensor:
        """True at the places of the padded layout that hold a token, ``(n, max_len)``."""
        return torch.arange(self.max_len, device=self.cu.device) < self.lengths[:, None]

    def pad(self, packed: Tensor) -> Tensor:
        """Lay ``(tokens, width)`` out as ``(n, max_len, width)`` with zeros after each sentence."""
        padded: Tensor = _Pad.apply(packed, self.padded_index, self.sentences * self.max_len)  # type: ignore[no-untyped-call]
        return padded.view(self.sentences, self.max_len, -1)

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of :meth:`pad`: ``(n, max_len, width)`` to ``(tokens, width)``."""
        rows = padded.reshape(self.sentences * self.max_len, -1)
        packed: Tensor = _Unpad.apply(rows, self.padded_index)  # type: ignore[no-untyped-call]
        return packed


def _scatter_rows(rows: Tensor, index: Tensor, total: int) -> Tensor:
    return rows.new_zeros(total, rows.shape[1]).index_copy_(0, index, rows)


class _Pad(torch.autograd.Function):
    """Scatter rows; each row goes to a place of its own, so that the gradient is a plain gather."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, index: Tensor, total: int) -> Tensor:
        ctx.save_for_backward(index)
        return _scatter_rows(packed, index, total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


class _Unpad(torch.autograd.Function):
    """Gather rows that are all different, so that the gradient is a plain scatter."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.total = padded.shape[0]
        return padded.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return _scatter_rows(grad, index, ctx.total), None
