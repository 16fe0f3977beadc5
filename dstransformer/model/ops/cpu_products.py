"""Products with weights on a CPU: by oneDNN, and the gradient of fp32 weights by a compiled kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dstransformer.model.ops import reference
from dstransformer.model.ops.library import LANES, call, empty_fp32, is_faster_than_mkl

#: The kernel for gradients of weights needs a number of inputs that is a multiple of this.
TILE_COLUMNS = 2 * LANES

#: It needs this many outputs per thread, because every thread lays out the whole input for itself.
MIN_OUTPUTS_PER_THREAD = 128


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """``x W^T + b``, or ``max(0, x W^T + b)``, by :func:`multiply` in both directions."""
    product: Tensor = _Linear.apply(x, weight, bias, relu)  # type: ignore[no-untyped-call]
    return product


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """As :func:`linear`, without gradient.

    oneDNN computes fp32 too: the library that PyTorch calls for it takes up to a sixth more time. The ReLU of oneDNN is
    not used, because it turns NaN into 0.
    """
    product = (_onednn_linear if _has_onednn(x.dtype) else F.linear)(x, weight, bias)
    return F.relu_(product) if relu else product


def prepare_linear(weight: Tensor, bias: Tensor | None, *, relu: bool) -> Callable[[Tensor], Tensor]:
    """As :func:`multiply`, with a copy of the weights in the order in which oneDNN reads them.

    Otherwise oneDNN lays them out again for every product. With few rows this saves up to a third of the time.
    """
    if _has_onednn(weight.dtype):
        weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return lambda x: multiply(x, weight, bias, relu=relu)


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """``grad^T x``: in fp32 by a kernel where MKL, which PyTorch calls, is slower."""
    (rows, outs), ins = grad.shape, x.shape[1]
    fits = rows > 0 and ins % TILE_COLUMNS == 0 and outs >= MIN_OUTPUTS_PER_THREAD * torch.get_num_threads()
    if not (fits and grad.dtype == torch.float32 and is_faster_than_mkl()):
        return reference.weight_gradient(grad, x)
    result = empty_fp32(outs, ins)
    call("weight_gradient", grad, grad.contiguous(), x.contiguous(), rows, outs, ins, result)
    return result


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@lru_cache
def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN's products exist and are right: they are private Inductor ops without a stability guarantee.

    The trial uses whole numbers that every precision holds, and weights as they are, transposed as for gradients, and
    laid out by :func:`prepare_linear`.
    """
    numbers = torch.arange(8 * 24, dtype=torch.float32, device="cpu")
    x, weight = (numbers % 7 - 3.0).view(8, 24).to(dtype), (numbers % 5 - 2.0).view(8, 24).to(dtype)
    transposed, bias = weight.t().contiguous().t(), weight[:, 0].contiguous()
    try:
        prepared = [torch.ops.mkldnn._reorder_linear_weight(tried) for tried in (weight, transposed)]
        return all(
            torch.equal(_onednn_linear(x, tried, added), F.linear(x, weight, added))
            for tried in (weight, transposed, *prepared)
            for added in (bias, None)
        )
    except (AttributeError, RuntimeError):
        return False


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        out = multiply(x, weight, bias, relu=relu)
        ctx.relu, ctx.biased = relu, bias is not None
        ctx.save_for_backward(x, weight, out if relu else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        grad, grad_bias = _bias_relu_backward(grad.contiguous(), out) if ctx.biased or ctx.relu else (grad, None)
        grad_x = multiply(grad, weight.t()) if ctx.needs_input_grad[0] else None
        grad_weight = weight_gradient(grad, x) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_bias if ctx.biased else None, None


def _bias_relu_backward(grad: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient before ReLU if ``out`` is given, else ``grad``; and the gradient of the bias."""
    rows, width = grad.shape
    if width % LANES:
        grad = grad if out is None else grad.masked_fill(out <= 0, 0.0)
        return grad, grad.sum(dim=0)
    sums = empty_fp32(width).zero_()
    passed = grad if out is None else torch.empty_like(grad)
    call("bias_relu_backward", grad, grad, 0 if out is None else out, rows, width, passed, sums)
    return passed, sums.to(grad.dtype)
