"""``LayerNorm(x + Dropout(y))`` on a GPU: one Triton kernel forward and one backward, without a stored mask."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dstransformer.model.ops.gpu_library import register
from dstransformer.model.ops.gpu_norm_kernels import residual_norm_backward_kernel, residual_norm_kernel
from dstransformer.model.ops.reference import DROPOUT_LEVELS

#: Seeds of dropout are less than this.
MAX_SEED = 2**63 - 1

#: Elements that a warp holds, 16 a thread.
WARP_ELEMENTS = 512

#: Elements that one number of the random generator decides, 16 bits each.
LANES = 8

#: Maximum sums of gradients of gain, over all programs of the backward kernel. It depends on no device, so the order of
#: the sums does not either.
PARTIAL_SUMS = 1 << 20

#: Rows that a program of the backward kernel sums at least, if there are as many.
MIN_ROWS = 4


def residual_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, p: float) -> Tensor:
    """``LayerNorm(x + Dropout(y))`` of rows that are at most ``gpu_library.MAX_WIDTH`` wide.

    Gain and bias may be in fp32 whatever the precision of ``x``; their gradients are summed in fp32. The mask is that
    of Philox for a seed from PyTorch's generator of the device, computed again for the gradient. The seed stays on the
    device, so nothing waits for it, and a CUDA graph draws another one each time it runs.
    """
    normed: Tensor = _ResidualNorm.apply(x, y, gain, bias, eps, p)  # type: ignore[no-untyped-call]
    return normed


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, p: float) -> Tensor:
        seed = torch.randint(MAX_SEED, (), device=x.device) if p else None
        out: Tensor
        out, summed, statistics = torch.ops.dstransformer.residual_norm(
            x.contiguous(), y.contiguous(), gain, bias, seed, eps, p
        )
        ctx.save_for_backward(summed, gain, statistics, seed)
        ctx.p, ctx.bias_dtype = p, bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        summed, gain, statistics, seed = ctx.saved_tensors
        grad_x, grad_y, partial = torch.ops.dstransformer.residual_norm_backward(
            grad.contiguous(), summed, gain, statistics, seed, ctx.p
        )
        grad_gain, grad_bias = partial.sum(dim=0).unbind()
        return (
            grad_x,
            grad_x if seed is None else grad_y,
            grad_gain.to(gain.dtype),
            grad_bias.to(ctx.bias_dtype),
            None,
            None,
        )


def launch_residual_norm(
    x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, seed: Tensor | None, eps: float, p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The normed rows, the rows before the norm, and their means and inverse deviations, ``(2, rows)`` fp32."""
    out, summed, statistics = results = _empty_results(x)
    rows, width = statistics.shape[1], x.shape[-1]
    if rows:
        step = math.gcd(width, 16)
        residual_norm_kernel[(rows,)](
            x, y, gain, bias, seed, out, summed, statistics, rows, width // step, eps, *_dropout(p),
            STEP=step, DROP=seed is not None, **_shape(width),
        )  # fmt: skip
    return results


def launch_residual_norm_backward(
    grad: Tensor, summed: Tensor, gain: Tensor, statistics: Tensor, seed: Tensor | None, p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``x`` and ``y`` (none without dropout), and parts of the sums of those of gain and bias."""
    grad_x, grad_y, partial = results = _empty_gradients(grad, summed, gain, statistics, seed)
    rows, width = statistics.shape[1], grad.shape[-1]
    if rows:
        step = math.gcd(width, 16)
        residual_norm_backward_kernel[(len(partial),)](
            grad, summed, gain, seed, statistics, grad_x, grad_y, partial, rows, width // step, *_dropout(p),
            STEP=step, DROP=seed is not None, **_shape(width),
        )  # fmt: skip
    return results


def _empty_results(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    statistics = torch.empty((2, x.numel() // x.shape[-1]), dtype=torch.float32, device=x.device)
    return torch.empty_like(x), torch.empty_like(x), statistics


def _empty_gradients(
    grad: Tensor, _summed: Tensor, gain: Tensor, statistics: Tensor, seed: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = statistics.shape[1], len(gain)
    programs = min(-(-rows // MIN_ROWS), max(1, PARTIAL_SUMS // triton.next_power_of_2(width)))
    partial = torch.empty((programs, 2, width), dtype=torch.float32, device=grad.device)
    grad_y = grad.new_empty(0) if seed is None else torch.empty_like(grad)
    return torch.empty_like(grad), grad_y, partial


@lru_cache
def _dropout(p: float) -> tuple[int, float]:
    """The level below which 16 random bits drop an element, and the factor of the others."""
    return round(p * DROPOUT_LEVELS), 1.0 / (1.0 - p)


@lru_cache
def _shape(width: int) -> dict[str, int]:
    """The block of a row, ``(GROUPS, LANES)``, and the warps that share it."""
    block = max(LANES, triton.next_power_of_2(width))
    return {"GROUPS": block // LANES, "num_warps": min(16, max(1, block // WARP_ELEMENTS))}


register(
    "residual_norm(Tensor x, Tensor y, Tensor gain, Tensor bias, Tensor? seed, float eps, float p) "
    "-> (Tensor, Tensor, Tensor)",
    launch_residual_norm,
    _empty_results,
)
register(
    "residual_norm_backward(Tensor grad, Tensor summed, Tensor gain, Tensor statistics, Tensor? seed, float p) "
    "-> (Tensor, Tensor, Tensor)",
    launch_residual_norm_backward,
    _empty_gradients,
)
