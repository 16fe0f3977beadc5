"""Dropout whose random mask is cheap on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Sets each element to zero with probability ``p`` and scales the others by ``1 / (1 - p)`` (section 5.4).

    PyTorch draws a CPU mask with one random number an element, on one thread. Here one 64-bit number decides four
    elements, 16 bits each, so that ``p`` is met within 2^-17. On other devices this is ``torch.nn.functional.dropout``.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of ``x``, any shape, while training."""
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * keep_mask(x.shape, self.p, x.dtype)

    def extra_repr(self) -> str:
        """The probability, for the printed module."""
        return f"p={self.p}"


def keep_mask(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """A CPU mask of ``shape``: 0 with probability ``p``, elsewhere ``1 / (1 - p)``."""
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[:count] >= round(p * _LEVELS) - _LEVELS // 2
    return kept.view(shape).to(dtype).mul_(1.0 / (1.0 - p))
