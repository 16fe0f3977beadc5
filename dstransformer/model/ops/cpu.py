"""The operations on a CPU: products by oneDNN, and the compiled kernels of ``library`` for the rest.

:mod:`dstransformer.model.ops.dispatch` says what each argument means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dstransformer.data.packing import Packing
from dstransformer.model.ops import reference
from dstransformer.model.ops.library import LANES, call, empty_fp32, is_faster_than_mkl
from dstransformer.model.ops.reference import DROPOUT_LEVELS, HeadShape

#: The kernel for gradients of weights needs a number of inputs that is a multiple of this.
TILE_COLUMNS = 2 * LANES

#: It needs this many outputs per thread, because every thread lays out the whole input for itself.
MIN_OUTPUTS_PER_THREAD = 128


# Products with weights: by oneDNN, and the gradient of fp32 weights by a kernel


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


# Row by row: norm, loss, and the best pieces of a search


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
    """The smoothed loss and the negative log-likelihood of each token, ``(tokens,)`` fp32.

    The gradient with respect to the logits, ``(tokens, pieces)``, replaces them.
    """
    rows, pieces = logits.shape
    loss, nll = empty_fp32(2, rows)
    call("cross_entropy", logits, logits, targets.contiguous(), rows, pieces, label_smoothing, loss, nll)
    return loss, nll


def r_drop_cross_entropy_(
    logits: tuple[Tensor, Tensor], targets: Tensor, label_smoothing: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Half the loss of R-Drop and the mean negative log-likelihood of each token, as :func:`cross_entropy_`."""
    rows, pieces = logits[0].shape
    loss, nll = empty_fp32(2, rows)
    call(
        "r_drop_cross_entropy", logits[0], *logits, targets.contiguous(), rows, pieces, label_smoothing, alpha,
        loss, nll,
    )  # fmt: skip
    return loss, nll


def best_pieces(logits: Tensor, first: int, end: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logits of each row; among equal ones the first pieces win."""
    logits = logits.contiguous()
    rows, pieces = logits.shape
    best, log_sums = empty_fp32(rows, count), empty_fp32(rows)
    chosen = torch.empty(rows, count, dtype=torch.int64, device="cpu")
    call("best_pieces", logits, logits, rows, pieces, first, end, count, best, chosen, log_sums)
    return best, chosen, log_sums


# Attention without padding: of whole sentences, and of one position at a time


def attention(
    queries: Tensor, keys_values: Tensor | None, packing: Packing, key_packing: Packing, shape: HeadShape
) -> Tensor:
    """Attention within each sentence; see :func:`dstransformer.model.ops.attention`. Filler is not read."""
    attended: Tensor = _Attention.apply(queries, keys_values, packing, key_packing, shape)  # type: ignore[no-untyped-call]
    return attended


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys_values: Tensor | None, packing: Packing, keys: Packing, shape: HeadShape
    ) -> Tensor:
        queries = queries.contiguous()
        keys_values = None if keys_values is None else keys_values.contiguous()
        out = queries.new_empty(queries.shape[0], shape.heads * shape.d_v)
        log_sums = empty_fp32(queries.shape[0], shape.heads)
        heads = _heads(queries, keys_values, shape)
        call("attention", queries, *heads, *_sentences(packing, keys, shape), out, log_sums)
        out[packing.tokens :] = 0.0
        ctx.packing, ctx.keys, ctx.shape = packing, keys, shape
        ctx.save_for_backward(queries, keys_values, log_sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys_values, log_sums = ctx.saved_tensors
        grad_queries = torch.empty_like(queries)
        grad_keys_values = None if keys_values is None else torch.empty_like(keys_values)
        heads = _heads(queries, keys_values, ctx.shape)
        grad_q, _, grad_k, grad_v, _ = _heads(grad_queries, grad_keys_values, ctx.shape)
        sentences = _sentences(ctx.packing, ctx.keys, ctx.shape)
        call("attention_backward", grad, grad.contiguous(), *heads, log_sums, *sentences, grad_q, grad_k, grad_v)
        grad_queries[ctx.packing.tokens :] = 0.0
        if grad_keys_values is not None:
            grad_keys_values[ctx.keys.tokens :] = 0.0
        return grad_queries, grad_keys_values, None, None, None


def attend_memory(
    queries: Tensor, keys_values: Tensor, row_cu: Tensor, begins: Tensor, ends: Tensor, shape: HeadShape
) -> Tensor:
    """Attention of the decoder's rows to the memory of their sentence, without gradient.

    Args:
        queries: ``(rows, heads * d_k)``, the rows of a sentence one after the other.
        keys_values: ``(memory_rows, heads * (d_k + d_v))``.
        row_cu: Cumulative numbers of rows per sentence, ``(sentences + 1,)`` int32.
        begins: First row of each sentence's memory, ``(sentences,)`` int32.
        ends: One more than its last row, ``(sentences,)`` int32.
        shape: The shape of the heads.

    Returns:
        ``(rows, heads * d_v)``.
    """
    rows = queries.shape[0]
    out, log_sums = queries.new_empty(rows, shape.heads * shape.d_v), empty_fp32(rows, shape.heads)
    heads = _heads(queries.contiguous(), keys_values, shape)
    call("attention", queries, *heads, row_cu, begins, ends, begins.numel(), *_plain(shape), out, log_sums)
    return out


def attend_path(past: Sequence[Tensor], path: Tensor, shape: HeadShape) -> Tensor:
    """Attention of each of the decoder's rows to the positions on its path, without gradient.

    Args:
        past: For each position the queries, keys and values of its rows, ``(rows then, heads * (2 * d_k + d_v))``,
            contiguous. The queries of the last position attend.
        path: For each row the row on its path at every position, ``(rows, length)`` int32, contiguous.
        shape: The shape of the heads.

    Returns:
        ``(rows, heads * d_v)``.
    """
    rows, length = path.shape
    assert path.dtype == torch.int32
    assert all(tensor.is_contiguous() for tensor in (path, *past))
    out = past[-1].new_empty(rows, shape.heads * shape.d_v)
    positions = torch.tensor([position.data_ptr() for position in past], dtype=torch.int64, device="cpu")
    call("attend_path", out, positions, path, rows, length, *_plain(shape)[:3], out)
    return out


def _heads(queries: Tensor, keys_values: Tensor | None, shape: HeadShape) -> tuple[Tensor, int, Tensor, Tensor, int]:
    """Where queries, keys and values begin, each with the number of elements from one row to the next."""
    key_width = shape.heads * shape.d_k
    keys = queries[:, key_width:] if keys_values is None else keys_values
    return queries, queries.stride(0), keys, keys[:, key_width:], keys.stride(0)


def _sentences(packing: Packing, keys: Packing, shape: HeadShape) -> tuple[Tensor | int, ...]:
    """Where sentences begin and end, their number, and the shape of the heads."""
    return packing.cu, keys.cu, keys.cu[1:], packing.sentences, *_plain(shape)


def _plain(shape: HeadShape) -> tuple[int, int, int, int]:
    return shape.heads, shape.d_k, shape.d_v, int(shape.causal)
