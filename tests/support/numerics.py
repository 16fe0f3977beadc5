"""Random tensors, and what is computed with them beside the same in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

#: What the kernels compute in, and the share of the largest element that they may be off by.
PRECISIONS = [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)]


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    """Normally distributed elements, as a leaf."""
    return torch.randn(*shape).to(dtype).requires_grad_()


def exact(tensor: Tensor) -> Tensor:
    """The same in fp64, as a leaf of its own."""
    return tensor.detach().double().requires_grad_()


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """To within a share of the largest element that is expected."""
    assert float((actual - expected).detach().abs().max()) <= tolerance * float(expected.detach().abs().max())
