"""The smallest modules: they hold weights and settings, and :mod:`dstransformer.model.ops` computes.

They compute in the precision of their input. Weights of another precision are rounded for the computation; their
gradients have the precision of the weights, so that several batches are summed in it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from dstransformer.model import ops


class Linear(nn.Linear):
    """``x W^T + b``, and with ``relu`` ``max(0, x W^T + b)``.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether to add ``b``.
        relu: Whether to set negative results to 0.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, relu: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """``(rows, in_features)`` to ``(rows, out_features)``."""
        return ops.linear(x, self.weight, self.bias, relu=self.relu)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation over ``d_model``, of a tensor or of a residual sum."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, eps=1e-6)  # as in the authors' tensor2tensor

    def forward(self, x: Tensor, y: Tensor | None = None, p: float = 0.0) -> Tensor:
        """``LayerNorm(x)``, or ``LayerNorm(x + Dropout(y))`` with the dropout probability ``p``; ``(…, d_model)``."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        if y is None:
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
        return ops.residual_norm(x, y, weight, bias, self.eps, p)


class Dropout(nn.Module):
    """Sets each element to zero with probability ``p`` and scales the others by ``1 / (1 - p)`` (section 5.4)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @property
    def active_p(self) -> float:
        """``p`` while training, else 0."""
        return self.p if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of ``x``, any shape, while training."""
        return ops.dropout(x, self.active_p)

    def extra_repr(self) -> str:
        """The probability, for the printed module."""
        return f"p={self.p}"
