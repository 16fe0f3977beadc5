"""Cross-entropy on a GPU: loss and gradient of a row of logits in one Triton kernel, in place.

The reference takes six passes over the logits, most of them in fp32. Here a row is read once for the sums of the
softmax, and once more for the gradient, mostly from the cache. ``F.linear_cross_entropy`` (PyTorch 2.13) computes in
chunks of tokens as well, but each chunk with PyTorch's operators in fp32; and with label smoothing it takes all logits
at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from dstransformer.model.ops.gpu_library import register
from dstransformer.model.ops.gpu_loss_kernels import cross_entropy_kernel, r_drop_kernel

#: Logits that a program reads at once, with R-Drop of two rows each. So 16 warps need few enough registers that at
#: least two programs share a multiprocessor, and the rows they are at fit into the cache.
BLOCK, R_DROP_BLOCK, WARPS = 4096, 2048, 16


def cross_entropy_(
    logits: Tensor, targets: Tensor, label_smoothing: float, gradient_scale: float | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Label-smoothed cross-entropy, whose gradient replaces the logits."""
    sums = torch.ops.dstransformer.cross_entropy_(logits, targets, label_smoothing, gradient_scale)
    loss, nll = sums.sum(dim=1).unbind()
    return loss, nll, None if gradient_scale is None else logits


def r_drop_cross_entropy_(
    logits: tuple[Tensor, Tensor], targets: Tensor, label_smoothing: float, alpha: float, gradient_scale: float | None
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Half the loss of R-Drop, whose gradients replace the logits."""
    sums = torch.ops.dstransformer.r_drop_cross_entropy_(*logits, targets, label_smoothing, alpha, gradient_scale)
    loss, nll = sums.sum(dim=1).unbind()
    return loss, nll, None if gradient_scale is None else logits


def launch_cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float, gradient_scale: float | None
) -> Tensor:
    """The smoothed loss and the negative log-likelihood of each token, ``(2, tokens)`` fp32; the gradient in place."""
    sums = _empty_sums(logits, targets)
    rows, pieces = logits.shape
    programs = targets.numel() if gradient_scale is None else rows
    if programs:
        step = math.gcd(pieces, 16)
        cross_entropy_kernel[(programs,)](
            logits, targets, sums, targets.numel(), pieces // step, label_smoothing, gradient_scale or 0.0,
            STEP=step, BLOCK=min(BLOCK, triton.next_power_of_2(pieces)), GRADIENT=gradient_scale is not None,
            num_warps=WARPS,
        )  # fmt: skip
    return sums


def launch_r_drop(
    first: Tensor, second: Tensor, targets: Tensor, label_smoothing: float, alpha: float, gradient_scale: float | None
) -> Tensor:
    """As :func:`launch_cross_entropy`, for two passes of the same tokens."""
    sums = _empty_sums(first, targets)
    rows, pieces = first.shape
    if rows:
        step = math.gcd(pieces, 16)
        r_drop_kernel[(rows,)](
            first, second, targets, sums, rows, pieces // step, label_smoothing, alpha, gradient_scale or 0.0,
            STEP=step, BLOCK=min(R_DROP_BLOCK, triton.next_power_of_2(pieces)), GRADIENT=gradient_scale is not None,
            num_warps=WARPS,
        )  # fmt: skip
    return sums


def _empty_sums(logits: Tensor, targets: Tensor, *_: Any) -> Tensor:
    return torch.empty((2, targets.numel()), dtype=torch.float32, device=logits.device)


def _empty_r_drop_sums(first: Tensor, _second: Tensor, targets: Tensor, *_: Any) -> Tensor:
    return _empty_sums(first, targets)


register(
    "cross_entropy_(Tensor(a!) logits, Tensor targets, float label_smoothing, float? gradient_scale) -> Tensor",
    launch_cross_entropy,
    _empty_sums,
)
register(
    "r_drop_cross_entropy_(Tensor(a!) first, Tensor(b!) second, Tensor targets, float label_smoothing, float alpha, "
    "float? gradient_scale) -> Tensor",
    launch_r_drop,
    _empty_r_drop_sums,
)
