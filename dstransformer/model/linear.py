"""Matrix products with weights."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from dstransformer.model import cpu


class Linear(nn.Linear):
    """``x W^T + b``, and with ``relu`` ``max(0, x W^T + b)``.

    Args:
        in_features: Of the input.
        out_features: Of the output.
        bias: Whether there is a ``b``.
        relu: Whether what is negative becomes 0.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, relu: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """``(rows, in_features)`` to ``(rows, out_features)``."""
        if cpu.can_compute(x, self.weight):
            return cpu.linear(x, self.weight, self.bias, relu=self.relu)
        product = F.linear(x, self.weight, self.bias)
        return F.relu(product) if self.relu else product
