"""Compiled CPU kernels that work row by row: norm, loss, and the best pieces of a search."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dstransformer.model.ops.library import call, empty_fp32
from dstransformer.model.ops.reference import DROPOUT_LEVELS


def residual_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, p: float) -> Tensor:
    """``LayerNorm(x + Dropout(y))`` in one pass over memory in each direction; the width is a multiple of ``LANES``.

    One number of PyTorch's generator seeds the dropout mask, which is generated again for the gradient and never
    stored. The probability is ``p`` to within 2^-17.
    """
    normed: Tensor = _ResidualNorm.apply(x, y, gain, bias, eps, p)  # type: ignore[no-untyped-call]
    return normed


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, p: float) -> Tensor:
        x, y = x.contiguous(), y.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if p else 0
        ctx.drop = (seed, round(p * DROPOUT_LEVELS), 1.0 / (1.0 - p))
        out, summed = torch.empty_like(x), torch.empty_like(x)
        mean, rstd = empty_fp32(2, rows)
        call("residual_norm", x, x, y, gain, bias, rows, width, eps, *ctx.drop, out, summed, mean, rstd)
        ctx.save_for_backward(summed, gain, mean, rstd)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        summed, gain, mean, rstd = ctx.saved_tensors
        grad = grad.contiguous()
        dropped = ctx.drop[1] > 0
        grad_x = torch.empty_like(grad)
        grad_y = torch.empty_like(grad) if dropped else grad_x
        grad_gain, grad_bias = empty_fp32(2, len(gain)).zero_()
        call(
            "residual_norm_backward", grad, grad, summed, gain, mean, rstd, len(mean), len(gain), *ctx.drop,
            grad_x, grad_y, grad_gain, grad_bias,
        )  # fmt: skip
        return grad_x, grad_y, grad_gain.to(grad.dtype), grad_bias.to(grad.dtype), None, None


def cross_entropy_(logits: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross-entropy of every row; its gradient with respect to the logits replaces them.

    Args:
        logits: ``(tokens, pieces)``, contiguous.
        targets: ``(tokens,)`` int64.
        label_smoothing: epsilon, spread evenly over all pieces.

    Returns:
        The smoothed loss and the negative log-likelihood of each token, ``(tokens,)`` fp32.
    """
    rows, pieces = logits.shape
    loss, nll = empty_fp32(2, rows)
    call("cross_entropy", logits, logits, targets.contiguous(), rows, pieces, label_smoothing, loss, nll)
    return loss, nll


def best_pieces(logits: Tensor, first: int, end: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`dstransformer.model.ops.best_pieces`; among equal logits the first pieces win."""
    logits = logits.contiguous()
    rows, pieces = logits.shape
    best, log_sums = empty_fp32(rows, count), empty_fp32(rows)
    chosen = torch.empty(rows, count, dtype=torch.int64, device="cpu")
    call("best_pieces", logits, logits, rows, pieces, first, end, count, best, chosen, log_sums)
    return best, chosen, log_sums
