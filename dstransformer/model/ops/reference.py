"""The operations of the model in plain PyTorch: the formulas that every faster implementation has to compute.

:mod:`dstransformer.model.ops.dispatch` says what each argument means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dstransformer.config import Activation
from dstransformer.data.packing import Packing, fill_rows
from dstransformer.model.ops.rounding import copy_or_weight, rounded

#: The activations: ``max(0, x)``, ``x sigmoid(x)``, and ``x Phi(x)`` with the distribution function of the normal
#: distribution itself, not its approximation by ``tanh``.
ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}

#: Dropout is decided by 16 random bits per element.
DROPOUT_LEVELS = 1 << 16

#: Where the rows of a mask have to begin, in elements.
MASK_MULTIPLE = 8


class HeadShape(NamedTuple):
    """The heads of an attention: their number, the width of queries and keys, that of values, and the causal mask."""

    heads: int
    d_k: int
    d_v: int
    causal: bool


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x W^T + b``, with weights that are rounded to the precision of ``x`` if theirs is another.

    Without :class:`~dstransformer.model.ops.rounding.RoundedWeights` they are rounded again for the gradient and not
    kept: at ZeRO stage 3, where a rank holds a part of the weights, copies of all of them would cost more than that
    part.
    """
    if weight.dtype == x.dtype:
        return F.linear(x, weight, bias)
    product: Tensor = _MixedLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


class _MixedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kept = copy_or_weight(weight, x.dtype)
        ctx.biased, ctx.dtype = bias is not None, weight.dtype
        ctx.save_for_backward(x, kept)
        return F.linear(x, kept.to(x.dtype), None if bias is None else rounded(bias, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, kept = ctx.saved_tensors
        grad_x = grad @ kept.to(grad.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = weight_gradient(grad, x).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = grad.sum(dim=0, dtype=ctx.dtype) if ctx.biased else None
        return grad_x, grad_weight, grad_bias


def bias_activation(product: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    """The activation of ``product + b``. With an fp32 bias the sum is in fp32, and so is the gradient of the bias."""
    return ACTIVATIONS[activation]((product + bias).to(product.dtype))


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """``grad^T x``; fp16 is summed and returned in fp32, because a sum over tokens can exceed the range of fp16.

    On a GPU bf16 is too: cuBLAS may cut a long sum into parts, and adds these in the precision of the result.
    """
    if grad.is_cuda and grad.dtype in (torch.float16, torch.bfloat16):
        return torch.mm(grad.t(), x, out_dtype=torch.float32)
    return grad.t().float() @ x.float() if grad.dtype == torch.float16 else grad.t() @ x


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each element to zero with probability ``p`` and scale the others by ``1 / (1 - p)`` (section 5.4)."""
    if p == 0.0:
        return x
    # A compiler draws the mask itself.
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return x * keep_mask(x.shape, p, x.dtype) if on_cpu else F.dropout(x, p)


def keep_mask(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """A CPU mask of ``shape``: 0 with probability ``p``, elsewhere ``1 / (1 - p)``.

    PyTorch draws one random number per element of a CPU mask, on one thread. Here one 64-bit number decides four
    elements, 16 bits each, so that the probability is ``p`` to within 2^-17.
    """
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[:count] >= round(p * DROPOUT_LEVELS) - DROPOUT_LEVELS // 2
    return kept.view(shape).to(dtype).mul_(1.0 / (1.0 - p))


def residual_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, p: float) -> Tensor:
    """``LayerNorm(x + Dropout(y))``."""
    return F.layer_norm(x + dropout(y, p), gain.shape, gain, bias, eps)


def cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float, gradient_scale: float | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``-sum(q log softmax(logits))`` with ``q = (1 - epsilon) onehot(target) + epsilon / pieces``.

    Its gradient with respect to the logits is ``softmax(logits) - q``.
    """
    rows, pieces = logits.shape
    log_p = logits[: targets.numel()].log_softmax(dim=-1, dtype=torch.float32)
    targets = targets[:, None]
    log_p_target = log_p.gather(1, targets)
    nll = -log_p_target.sum()
    loss = (1.0 - label_smoothing) * nll - label_smoothing * log_p.mean(dim=-1).sum()
    if gradient_scale is None:
        return loss, nll, None
    share = label_smoothing / pieces
    q = torch.full_like(log_p, share).scatter_(1, targets, 1.0 - label_smoothing + share)
    return loss, nll, fill_rows(log_p.exp_().sub_(q).mul_(gradient_scale).to(logits.dtype), rows)


def r_drop_cross_entropy(
    first_logits: Tensor,
    second_logits: Tensor,
    targets: Tensor,
    label_smoothing: float,
    alpha: float,
    gradient_scale: float | None,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Half the loss of R-Drop (Liang et al., 2021, equation 4), summed over tokens, for two passes of the same tokens.

    With ``P`` and ``Q`` the two distributions and ``CE`` the smoothed cross-entropy of :func:`cross_entropy`,
    ``(CE(P) + CE(Q)) / 2 + alpha / 2 * (KL(P, Q) + KL(Q, P)) / 2``. Half, so that two equal passes have the loss
    of one.
    """
    logits = (first_logits, second_logits)
    scale = None if gradient_scale is None else 0.5 * gradient_scale
    first, second = (cross_entropy(z, targets, label_smoothing, scale) for z in logits)
    log_p, log_q = (z.log_softmax(dim=-1, dtype=torch.float32) for z in logits)
    p, q, ratio = log_p.exp(), log_q.exp(), log_p - log_q
    kl_pq, kl_qp = (p * ratio).sum(dim=-1, keepdim=True), -(q * ratio).sum(dim=-1, keepdim=True)
    loss = 0.5 * (first[0] + second[0]) + 0.25 * alpha * (kl_pq + kl_qp).sum()
    nll = 0.5 * (first[1] + second[1])
    if gradient_scale is None or first[2] is None or second[2] is None:
        return loss, nll, None
    weight = 0.25 * alpha * gradient_scale
    grads = (
        (first[2].float() + weight * (p * (ratio - kl_pq) + p - q)).to(logits[0].dtype),
        (second[2].float() + weight * (q * (-ratio - kl_qp) + q - p)).to(logits[1].dtype),
    )
    return loss, nll, grads


def best_pieces(logits: Tensor, first: int, end: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``count`` largest of ``logits[:, first:end]``, their pieces, and ``log(sum(exp(logits)))`` of each row."""
    best, pieces = logits[:, first:end].topk(count)
    return best.float(), pieces + first, logits.float().logsumexp(dim=-1)


def attention_product(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool, p: float = 0.0) -> Tensor:
    """Scaled dot-product attention, ``softmax(q k^T / sqrt(d_k)) v`` (equation 1), on padded heads.

    Args:
        q: ``(n, heads, len, d_k)``.
        k: ``(n, heads, key_len, d_k)``.
        v: ``(n, heads, key_len, d_v)``.
        key_mask: True where a key is visible, or what is added to the scores: ``(n, key_len)``, or ``(n, len,
            key_len)`` for a mask per query; None shows all keys.
        causal: Mask what comes after each query; ``len`` equals ``key_len``.
        p: Probability that a weight is dropped.

    Returns:
        ``(n, heads, len, d_v)``.
    """
    mask = None if key_mask is None else key_mask[:, None] if key_mask.dim() == 3 else key_mask[:, None, None]
    if q.device.type != "cpu" or q.dtype == torch.float32:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, is_causal=causal)
    # On a CPU in half precision the fused kernel is several times slower on many short sentences.
    scores = torch.matmul(q * (1.0 / math.sqrt(q.shape[-1])), k.transpose(-1, -2))
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1)
        scores = scores.masked_fill(future, float("-inf"))
    elif mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(dim=-1)
    if p:
        weights = weights * keep_mask(weights.shape, p, weights.dtype)
    return torch.matmul(weights, v)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a boolean mask ``(…, key_len)`` is True, else minus infinity; the rows get a multiple of 8 columns.

    PyTorch makes the same of a boolean mask at each call, with three kernels, and with more if rows begin elsewhere.
    """
    filled = F.pad(mask, (0, -mask.shape[-1] % MASK_MULTIPLE))
    return torch.full_like(filled, float("-inf"), dtype=dtype).masked_fill_(filled, 0.0)


def attention(
    queries: Tensor, keys_values: Tensor | None, packing: Packing, key_packing: Packing, shape: HeadShape, p: float
) -> Tensor:
    """:func:`attention_product` within each sentence of a packed batch, on sentences padded to one length.

    On a CPU sentences of similar length are padded together. On a GPU the whole batch is: many small products take
    longer there than the padding.
    """
    if queries.device.type != "cpu":
        return _attention_padded(queries, keys_values, packing, key_packing, shape, p)
    groups = packing.group(key_packing)
    grouped = groups.queries.split(queries)
    grouped_keys = [None] * len(grouped) if keys_values is None else groups.keys.split(keys_values)
    batches = zip(grouped, grouped_keys, groups.queries.groups, groups.keys.groups, strict=True)
    return packing.fill(groups.queries.join([_attention_padded(*batch, shape, p) for batch in batches]))


def _attention_padded(
    queries: Tensor, keys_values: Tensor | None, packing: Packing, key_packing: Packing, shape: HeadShape, p: float
) -> Tensor:
    padded_keys_values = None if keys_values is None else key_packing.pad(keys_values)
    q, k, v = split_projections(packing.pad(queries), padded_keys_values, shape)
    mask = None if shape.causal else key_packing.padding_mask
    out = attention_product(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, shape.causal, p)
    return packing.unpad(out.transpose(1, 2).flatten(2))


def split_projections(queries: Tensor, keys_values: Tensor | None, shape: HeadShape) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, ``(…, heads, d)`` each, of the projections that ``dispatch.attention`` takes."""
    heads, d_k, d_v, _ = shape
    if keys_values is None:
        q, k, v = split_heads(queries, heads, d_k, d_k, d_v)
        return q, k, v
    k, v = split_heads(keys_values, heads, d_k, d_v)
    return queries.view(*queries.shape[:-1], heads, d_k), k, v


def split_heads(x: Tensor, heads: int, *widths: int) -> list[Tensor]:
    """``(…, heads * sum(widths))`` to one ``(…, heads, width)`` for each width."""
    parts = torch.split(x, [heads * width for width in widths], dim=-1)
    return [part.view(*x.shape[:-1], heads, width) for part, width in zip(parts, widths, strict=True)]
