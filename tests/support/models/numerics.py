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


#: How far losses of other numbers of ranks or of another ZeRO stage may differ, as a share. Gradients are summed in
#: fp32 everywhere, so only the order of sums differs. In half precision that turns a rounding of a weight here and
#: there: a loss then moves by a part of a unit roundoff (2^-9 in bf16, 2^-11 in fp16), not more with more updates.
LAYOUT_TOLERANCE = {"fp32": 1e-5, "bf16": 2**-11, "fp16": 2**-12}


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Assert equality to within ``tolerance`` times the largest expected element."""
    assert float((actual - expected).detach().abs().max()) <= tolerance * float(expected.detach().abs().max())
