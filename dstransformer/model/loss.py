"""The losses: label-smoothed cross-entropy, R-Drop, and guided alignment.

Those through the output projection never hold the logits of all tokens in memory at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dstransformer.data.packing import ROW_COUNTS, Links, Packing, fill_rows, round_rows
from dstransformer.model import ops

#: Maximum logits held at once, in fp32 on a CPU half of them; a chunk of tokens is as long as fits. With several chunks
#: a CPU also holds two copies of the softmax matrix, laid out for the products.
CHUNK_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 27}

#: The factor of the gradient of fp16 logits while it is in fp16. It is rounded before the loss is scaled, and the share
#: of label smoothing is about 3e-6 per piece, where fp16 has steps of 6e-8.
FP16_SCALE = 1024.0


class LossSums(NamedTuple):
    """Sums over the target tokens of a batch, in nats, scalars in fp32.

    Attributes:
        loss: The training loss, with a gradient.
        terms: Terms of it by name, before their weights and without a gradient: ``nll``, the negative log-likelihood
            of the reference without smoothing, and ``alignment``, the cross-entropy of guided alignment, if it is on.
    """

    loss: Tensor
    terms: Mapping[str, Tensor]

    def detach(self) -> LossSums:
        """The sums without a gradient, in fp32."""
        terms = {name: term.detach().float() for name, term in self.terms.items()}
        return LossSums(self.loss.detach().float(), terms)

    @classmethod
    def total(cls, sums: Sequence[LossSums]) -> LossSums:
        """The totals of several batches, all with the same terms."""
        terms = {name: torch.stack([one.terms[name] for one in sums]).sum() for name in sums[0].terms}
        return cls(torch.stack([one.loss for one in sums]).sum(), terms)


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum over tokens of the cross-entropy against the smoothed target (section 5.4; Szegedy et al., 2016).

    The target is ``1 - epsilon`` on the reference and ``epsilon`` spread evenly over all rows of ``weight``. Gradients
    are computed chunk by chunk in the forward pass, while a chunk's logits are at hand.

    Args:
        hidden: The decoder's output, ``(rows, d_model)``; rows beyond the targets are filler.
        weight: The softmax matrix, ``(rows, d_model)``; rounded to the precision of ``hidden`` for the computation.
        targets: ``(tokens,)`` int64, at most ``rows``.
        label_smoothing: epsilon.
        bias: Added to the logits, ``(rows,)``; None: nothing. It has a gradient if the others have.

    Returns:
        The loss, and the negative log-likelihood without smoothing and without a gradient: scalars in fp32.
    """
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss, nll = _SmoothedCrossEntropy.apply(hidden, weight, bias, targets, label_smoothing, needs_grad)  # type: ignore[no-untyped-call]
    return loss, nll


def r_drop_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, alpha: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Half the loss of R-Drop for two passes (Liang et al., 2021, equation 4); see ``ops.r_drop_cross_entropy``.

    Args:
        hidden: The decoder's output, ``(rows, d_model)``: the first pass, the second pass, then filler.
        weight: The softmax matrix, ``(rows, d_model)``.
        targets: Of one pass, ``(tokens,)`` int64.
        label_smoothing: epsilon.
        alpha: Weight of the divergence between the passes.
        bias: As for :func:`smoothed_cross_entropy`.

    Returns:
        The loss, and the mean negative log-likelihood of the two passes without a gradient: scalars in fp32.
    """
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss, nll = _RDropCrossEntropy.apply(hidden, weight, bias, targets, label_smoothing, alpha, needs_grad)  # type: ignore[no-untyped-call]
    return loss, nll


def _most_logits(hidden: Tensor) -> int:
    """Maximum logits of a chunk: on a CPU, whose caches it goes through, as many bytes in fp32 as in 16 bits."""
    most = CHUNK_LOGITS[hidden.device.type]
    return most // 2 if hidden.device.type == "cpu" and hidden.dtype == torch.float32 else most


def _round_bias(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else ops.rounded(bias, dtype)


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        epsilon: float,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        assert targets.numel() <= hidden.shape[0]
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight: Tensor | None = None
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        nll = torch.zeros_like(loss)
        scale = FP16_SCALE if hidden.dtype == torch.float16 else 1.0
        chunk = max(1, _most_logits(hidden) // weight.shape[0])
        repeated = hidden.shape[0] > chunk
        rounded = ops.rounded(weight, hidden.dtype)
        project = ops.prepare_linear(rounded, _round_bias(bias, hidden.dtype), repeated=repeated)
        project_back = ops.prepare_linear(rounded.t(), repeated=repeated) if needs_grad else None
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = project(hidden[part])
            chunk_loss, chunk_nll, grad = ops.cross_entropy(
                logits, targets[part], epsilon, scale if needs_grad else None
            )
            loss += chunk_loss
            nll += chunk_nll
            if grad is not None and grad_hidden is not None and project_back is not None:
                grad_hidden[part] = project_back(grad)
                chunk_grad_weight = ops.weight_gradient(grad, hidden[part])
                grad_weight = chunk_grad_weight.float() if grad_weight is None else grad_weight.add_(chunk_grad_weight)
                if grad_bias is not None:
                    grad_bias += grad.sum(dim=0, dtype=torch.float32)
                del chunk_grad_weight
            del logits, grad  # before the next chunk takes as much memory
        if needs_grad:
            ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.weight_dtype, ctx.scale = weight.dtype, scale
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_nll: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        # In fp32, because the scale of an fp16 loss can exceed the range of fp16.
        factor = grad_loss / ctx.scale
        scaled = (grad_hidden.float() * factor).to(grad_hidden.dtype)
        of_bias = None if grad_bias is None else (grad_bias * factor).to(ctx.weight_dtype)
        return scaled, (grad_weight * factor).to(ctx.weight_dtype), of_bias, None, None, None


class _RDropCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        epsilon: float,
        alpha: float,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        tokens = targets.numel()
        assert 2 * tokens <= hidden.shape[0]
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        nll = torch.zeros_like(loss)
        scale = FP16_SCALE / max(1.0, alpha) if hidden.dtype == torch.float16 else 1.0
        # PyTorch keeps eight tensors as large; the kernel keeps two, and is not faster with more rows.
        chunk = max(64, _most_logits(hidden) // (8 * weight.shape[0]))
        rounded = ops.rounded(weight, hidden.dtype)
        project = ops.prepare_linear(rounded, _round_bias(bias, hidden.dtype))
        project_back = ops.prepare_linear(rounded.t())
        for start in range(0, tokens, chunk):
            end = min(start + chunk, tokens)
            first, second = slice(start, end), slice(tokens + start, tokens + end)
            rows = round_rows(2 * (end - start), ROW_COUNTS)  # few sizes, for oneDNN
            both = fill_rows(torch.cat((hidden[first], hidden[second])), rows)
            logits = project(both)[: 2 * (end - start)].chunk(2)
            chunk_loss, chunk_nll, grads = ops.r_drop_cross_entropy(
                (logits[0], logits[1]), targets[start:end], epsilon, alpha, scale if needs_grad else None
            )
            loss += chunk_loss
            nll += chunk_nll
            if grads is not None:
                grad = fill_rows(torch.cat(grads), rows)
                grad_hidden[first], grad_hidden[second] = project_back(grad)[: 2 * (end - start)].chunk(2)
                grad_weight += ops.weight_gradient(grad, both)
                if grad_bias is not None:
                    grad_bias += grad.sum(dim=0, dtype=torch.float32)
        if needs_grad:
            ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.weight_dtype, ctx.scale = weight.dtype, scale
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        return (*_SmoothedCrossEntropy.backward(ctx, grad_loss, grad_nll), None)


def alignment_cross_entropy(queries: Tensor, keys: Tensor, links: Links) -> Tensor:
    """Sum over linked target tokens of the cross-entropy between their alignment and the attention weights of a head.

    The alignment of a token is spread evenly over the source tokens that it is linked to. The weights are those of the
    position that predicts the token, before dropout.

    Args:
        queries: Those of the head for a packed batch, ``(rows, d_k)``.
        keys: Those of the head, ``(src_rows, d_k)``.
        links: The alignments.

    Returns:
        A scalar in fp32, in nats.
    """
    weights = log_weights(queries, keys, links.tgt_rows, links.tgt_packing, links.src_rows, links.src_packing)
    return -(weights.flatten()[links.places] * links.shares).sum()


def log_weights(
    queries: Tensor, keys: Tensor, tgt_rows: Tensor, tgt_packing: Packing, src_rows: Tensor, src_packing: Packing
) -> Tensor:
    """The logarithms of the attention weights of one head (equation 1) for some sentences of a packed batch, in fp32.

    Args:
        queries: Of the batch, ``(rows, d_k)``.
        keys: Of the batch, ``(src_rows, d_k)``.
        tgt_rows: The rows of the sentences in ``queries``.
        tgt_packing: The sentences that these rows are.
        src_rows: The rows of the sentences in ``keys``.
        src_packing: The sentences that these rows are.

    Returns:
        ``(n, tgt_packing.max_len, src_packing.max_len)``; minus infinity where a source sentence has no token.
    """
    q = tgt_packing.pad(queries.float()[tgt_rows])
    k = src_packing.pad(keys.float()[src_rows])
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    return scores.masked_fill(~src_packing.padding_mask[:, None], float("-inf")).log_softmax(dim=2)
