"""Label-smoothed cross-entropy through the output projection, without the logits of all tokens in memory at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: Logits held at once, at most; a chunk of tokens is as long as fits. On a CPU they should stay in its caches.
CHUNK_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 27}


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sum over tokens of the cross-entropy against the smoothed target (section 5.4; Szegedy et al., 2016).

    The target is ``1 - epsilon`` on the reference and ``epsilon`` spread evenly over all rows of ``weight``. Gradients
    are computed chunk by chunk in the forward pass, while a chunk's logits are at hand.

    Args:
        hidden: The decoder's output, ``(tokens, d_model)``.
        weight: The softmax matrix, ``(rows, d_model)``.
        targets: ``(tokens,)`` int64.
        label_smoothing: epsilon.

    Returns:
        The smoothed loss, a scalar fp32 that gradients flow from, and the negative log-likelihood of the reference (no
        smoothing, no gradient): both sums over tokens, in nats.
    """
    loss, nll = _SmoothedCrossEntropy.apply(hidden, weight, targets, label_smoothing)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        rows = weight.shape[0]
        chunk = max(1, CHUNK_LOGITS[hidden.device.type] // rows)
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_grad else None
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        nll = torch.zeros_like(loss)
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            reference = targets[part, None]
            log_p = F.linear(hidden[part], weight).log_softmax(dim=-1, dtype=torch.float32)
            at_reference = log_p.gather(1, reference)
            nll -= at_reference.sum()
            loss -= (1.0 - epsilon) * at_reference.sum() + epsilon * log_p.mean(dim=-1).sum()
            if grad_hidden is not None and grad_weight is not None:
                grad = log_p.exp_().sub_(epsilon / rows)
                grad.scatter_add_(1, reference, torch.full_like(reference, epsilon - 1.0, dtype=grad.dtype))
                grad = grad.to(hidden.dtype)
                torch.mm(grad, weight, out=grad_hidden[part])
                grad_weight += grad.t() @ hidden[part]
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, grad_nll: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ARG004
        grad_hidden, grad_weight = ctx.saved_tensors
        # In fp32, since the scale of an fp16 loss may be more than fp16 can hold.
        scaled = (grad_hidden.float() * grad_loss).to(grad_hidden.dtype)
        return scaled, (grad_weight * grad_loss).to(ctx.weight_dtype), None, None
