"""Label-smoothed cross-entropy through the output projection, without the logits of all tokens in memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dstransformer.model import cpu
from dstransformer.model.packing import fill_rows

#: Logits held at once, at most; a chunk of tokens is as long as fits. With several chunks a CPU holds two copies of the
#: softmax matrix besides, laid out for the products.
CHUNK_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 27}

#: What the gradient of fp16 logits is multiplied by as long as it is in fp16. It is rounded before the loss is scaled,
#: and the share of label smoothing is about 3e-6 a piece, where fp16 has steps of 6e-8.
FP16_SCALE = 1024.0


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sum over tokens of the cross-entropy against the smoothed target (section 5.4; Szegedy et al., 2016).

    The target is ``1 - epsilon`` on the reference and ``epsilon`` spread evenly over all rows of ``weight``. Gradients
    are computed chunk by chunk in the forward pass, while a chunk's logits are at hand.

    Args:
        hidden: The decoder's output, ``(rows, d_model)``; those beyond the targets are filler.
        weight: The softmax matrix, ``(rows, d_model)``.
        targets: ``(tokens,)`` int64, at most ``rows``.
        label_smoothing: epsilon.

    Returns:
        The smoothed loss, a scalar fp32 that gradients flow from, and the negative log-likelihood of the reference (no
        smoothing, no gradient): both sums over tokens, in nats.
    """
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss, nll = _SmoothedCrossEntropy.apply(hidden, weight, targets, label_smoothing, needs_grad)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, epsilon: float, needs_grad: bool
    ) -> tuple[Tensor, Tensor]:
        assert targets.numel() <= hidden.shape[0]
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight: Tensor | None = None
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        nll = torch.zeros_like(loss)
        scale = 1.0
        chunk = max(1, CHUNK_LOGITS[hidden.device.type] // weight.shape[0])
        several = hidden.shape[0] > chunk
        project = _product_with(weight, several)
        project_back = _product_with(weight.t(), several) if needs_grad else None
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = project(hidden[part])
            scale = _scale(logits.dtype)
            chunk_loss, chunk_nll, grad = _of_chunk(logits, targets[part], epsilon, needs_grad)
            loss += chunk_loss
            nll += chunk_nll
            if grad is not None and grad_hidden is not None and project_back is not None:
                grad_hidden[part] = project_back(grad)
                of_weight = _of_weight(grad, hidden[part])
                grad_weight = of_weight.float() if grad_weight is None else grad_weight.add_(of_weight)
                del of_weight
            del logits, grad  # before the next chunk takes as much memory
        if needs_grad:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype, ctx.scale = weight.dtype, scale
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_nll: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        grad_hidden, grad_weight = ctx.saved_tensors
        # In fp32, since the scale of an fp16 loss may be more than fp16 can hold.
        factor = grad_loss / ctx.scale
        scaled = (grad_hidden.float() * factor).to(grad_hidden.dtype)
        return scaled, (grad_weight * factor).to(ctx.weight_dtype), None, None, None


def _scale(dtype: torch.dtype) -> float:
    """What the gradient of logits in this precision is multiplied by."""
    return FP16_SCALE if dtype == torch.float16 else 1.0


def _of_weight(grad: Tensor, hidden: Tensor) -> Tensor:
    """The weight's gradient from that of the logits; in fp32 from fp16, whose range its sums over tokens may leave."""
    if cpu.can_compute(grad, hidden):
        return cpu.weight_gradient(grad, hidden)
    if grad.dtype != torch.float16:
        return grad.t() @ hidden
    return torch.mm(grad.t(), hidden, out_dtype=torch.float32) if grad.is_cuda else grad.t().float() @ hidden.float()


def _product_with(weight: Tensor, several: bool) -> Callable[[Tensor], Tensor]:
    """``(rows, columns of weight)`` to ``(rows, rows of weight)``; for several products weights are laid out once."""
    if not cpu.can_compute(weight):
        return lambda x: F.linear(x, weight)
    return cpu.pack_linear(weight, None) if several else lambda x: cpu.multiply(x, weight)


def _of_chunk(
    logits: Tensor, targets: Tensor, epsilon: float, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Loss, negative log-likelihood, and the scaled gradient of the logits, whose memory it may take."""
    tokens, rows = targets.numel(), logits.shape[0]
    if needs_grad and cpu.can_compute(logits):
        loss, nll = cpu.cross_entropy_(logits[:tokens], targets, epsilon)
        logits[tokens:] = 0.0
        return loss.sum(), nll.sum(), logits
    logits = logits[:tokens]
    reference = targets[:, None]
    log_p = logits.log_softmax(dim=-1, dtype=torch.float32)
    at_reference = log_p.gather(1, reference)
    nll = -at_reference.sum()
    loss = (1.0 - epsilon) * nll - epsilon * log_p.mean(dim=-1).sum()
    if not needs_grad:
        return loss, nll, None
    grad = log_p.exp_().sub_(epsilon / logits.shape[1])
    grad.scatter_add_(1, reference, torch.full_like(reference, epsilon - 1.0, dtype=grad.dtype))
    return loss, nll, fill_rows(grad.mul_(_scale(logits.dtype)).to(logits.dtype), rows)
