"""Weights in the precision of the computation, rounded at each use or once for many uses, and weights of 8 bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: The attribute of a weight that holds its rounded copy, while there is one.
_COPY = "rounded_copy"


def rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight in a precision. Its gradient is that of the weight, in the precision of the weight.

    It is the copy of :class:`RoundedWeights` while that is in use. Otherwise it is computed here.
    """
    copy = copy_or_weight(weight, dtype)
    if copy is weight or not torch.is_grad_enabled():
        return copy.to(dtype)
    result: Tensor = _Rounded.apply(weight, copy)  # type: ignore[no-untyped-call]
    return result


def copy_or_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The copy of :class:`RoundedWeights` in this precision, without gradient, while it is in use; else the weight."""
    copy: Tensor | None = getattr(weight, _COPY, None)
    return weight if copy is None or copy.dtype != dtype else copy


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


def int8_values(weight: Tensor) -> Tensor:
    """The values of a matrix in CTranslate2's int8: each row is a scale, ``127 / max |w|``, and integers.

    CTranslate2 4.8 stores ``round(w * scale)``, to the nearest and half to even, and computes with the integer over the
    scale. A row of zeros stays zeros.

    Args:
        weight: ``(rows, columns)``, fp32.

    Returns:
        ``(rows, columns)``, fp32, without gradient.
    """
    weight = weight.detach()
    scale = 127.0 / weight.abs().amax(dim=1, keepdim=True).clamp_(min=1e-36)  # finite for a row of zeros too
    return (weight * scale).round_().div_(scale)


def through_int8(weight: Tensor) -> Tensor:
    """:func:`int8_values`, with the gradient of the weight: the straight-through estimator (Bengio et al., 2013).

    No value is clipped, as the largest of each row is 127 steps, so the gradient passes everywhere.
    """
    values = int8_values(weight)
    if not torch.is_grad_enabled():
        return values
    result: Tensor = _Rounded.apply(weight, values)  # type: ignore[no-untyped-call]
    return result


class RoundedWeights:
    """A copy of weights in another precision, for many uses while they do not change.

    Args:
        weights: The weights, whole on this device; they stay the same tensors.
        dtype: The precision of the copy.
    """

    def __init__(self, weights: Iterable[Tensor], dtype: torch.dtype) -> None:
        self._weights = list(weights)
        self._copies = [torch.empty_like(weight, dtype=dtype, requires_grad=False) for weight in self._weights]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Round all weights, and let :func:`rounded` return the copies until the end of the block.

        Forward and backward passes of the block must end in it. The weights must not change inside it.
        """
        with torch.no_grad():
            torch._foreach_copy_(self._copies, self._weights)
        try:
            for weight, copy in zip(self._weights, self._copies, strict=True):
                setattr(weight, _COPY, copy)
            yield
        finally:
            for weight in self._weights:
                if hasattr(weight, _COPY):
                    delattr(weight, _COPY)
