"""Random tensors, and comparison with results in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

#: Dtypes of the kernels, and the tolerance relative to the largest element.
PRECISIONS = [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)]


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    """A leaf tensor of normally distributed elements."""
    return torch.randn(*shape).to(dtype).requires_grad_()


def exact(tensor: Tensor) -> Tensor:
    """A copy in fp64, as a new leaf."""
    return tensor.detach().double().requires_grad_()


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Assert equality to within ``tolerance`` times the largest expected element."""
    assert float((actual - expected).detach().abs().max()) <= tolerance * float(expected.detach().abs().max())
