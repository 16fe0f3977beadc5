"""The kernels as functions of tensors, differentiable unless they say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dstransformer.model.cpu.library import NAMES, kernels, outruns_mkl
from dstransformer.model.packing import Packing

#: Elements of a vector in the kernels.
LANES = 16

#: What the number of a product's inputs must be a multiple of in the kernel for gradients of weights.
TILE_COLUMNS = 2 * LANES

#: Outputs that each thread must have there: every thread lays out the whole input for itself.
OUTPUTS_PER_THREAD = 128

_LEVELS = 1 << 16


class HeadShape(NamedTuple):
    """Of an attention; see :class:`dstransformer.model.attention.MultiHeadAttention`."""

    heads: int
    d_k: int
    d_v: int
    causal: bool


def can_compute(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors: on a CPU, and all in one precision that they have."""
    dtype = tensors[0].dtype
    return (
        all(tensor.device.type == "cpu" and tensor.dtype == dtype for tensor in tensors)
        and dtype in NAMES
        and kernels() is not None
    )


def residual_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, dropout: float) -> Tensor:
    """``LayerNorm(x + Dropout(y))`` in one pass over memory each way (sections 3.1 and 5.4).

    The dropout mask is drawn from one number of PyTorch's generator, and drawn again for the gradient: nothing of it
    is stored. ``dropout`` is met within 2^-17.

    Args:
        x: ``(…, d_model)``, ``d_model`` a multiple of ``LANES``.
        y: Of the same shape.
        gain: ``(d_model,)``.
        bias: ``(d_model,)``.
        eps: Added to the variance.
        dropout: Probability that an element of ``y`` is dropped, less than 1.
    """
    normed: Tensor = _ResidualNorm.apply(x, y, gain, bias, eps, dropout)  # type: ignore[no-untyped-call]
    return normed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """``x W^T + b``, or ``max(0, x W^T + b)`` (section 3.3).

    By oneDNN, in fp32 too: what PyTorch calls there takes up to a sixth more time. The ReLU of oneDNN, which makes
    a 0 of what is not a number, is not used.

    Args:
        x: ``(rows, in_features)``.
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)``, or None.
        relu: The latter.

    Returns:
        ``(rows, out_features)``.
    """
    product: Tensor = _Linear.apply(x, weight, bias, relu)  # type: ignore[no-untyped-call]
    return product


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """As :func:`linear`, without gradient."""
    product = (_onednn_linear if _has_onednn(x.dtype) else F.linear)(x, weight, bias)
    return F.relu_(product) if relu else product


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of the weights of ``x W^T``: ``grad^T x``. Itself without gradient.

    In fp32 by a kernel where MKL, which PyTorch calls, mostly takes more time.

    Args:
        grad: Of the product, ``(rows, out_features)``.
        x: ``(rows, in_features)``.

    Returns:
        ``(out_features, in_features)``.
    """
    (rows, outs), ins = grad.shape, x.shape[1]
    fits = rows > 0 and ins % TILE_COLUMNS == 0 and outs >= OUTPUTS_PER_THREAD * torch.get_num_threads()
    if not (fits and grad.dtype == torch.float32 and outruns_mkl()):
        return grad.t() @ x
    result = _fp32(outs, ins)
    _call("weight_gradient", grad, grad.contiguous(), x.contiguous(), rows, outs, ins, result)
    return result


def cross_entropy_(logits: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross-entropy of every row; its gradient with respect to the logits takes their place.

    Args:
        logits: ``(tokens, pieces)``, contiguous.
        targets: ``(tokens,)`` int64.
        label_smoothing: epsilon, spread evenly over all pieces.

    Returns:
        The smoothed loss and the negative log-likelihood of each token, ``(tokens,)`` fp32.
    """
    rows, pieces = logits.shape
    loss, nll = _fp32(2, rows)
    _call("cross_entropy", logits, logits, targets.contiguous(), rows, pieces, label_smoothing, loss, nll)
    return loss, nll


def best_pieces(logits: Tensor, first: int, end: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logits of each row among the pieces from ``first`` to before ``end``; of equals the first.

    Args:
        logits: ``(rows, pieces)``.
        first: The first piece that may be chosen.
        end: One more than the last.
        count: How many, at most ``end - first``.

    Returns:
        Logits, best first, and their pieces, ``(rows, count)`` fp32 and int64; and the logarithm of the sum of the
        exponentials of all of a row's logits, ``(rows,)`` fp32.
    """
    logits = logits.contiguous()
    rows, pieces = logits.shape
    best, log_masses = _fp32(rows, count), _fp32(rows)
    places = torch.empty(rows, count, dtype=torch.int64, device="cpu")
    _call("best_pieces", logits, logits, rows, pieces, first, end, count, best, places, log_masses)
    return best, places, log_masses


def packed_attention(
    queries: Tensor, keys_values: Tensor | None, packing: Packing, key_packing: Packing, shape: HeadShape
) -> Tensor:
    """Scaled dot-product attention within each sentence (equation 1), without padding.

    Args:
        queries: ``(rows, heads * d_k)``; for self-attention keys and values follow in each row,
            ``(rows, heads * (2 * d_k + d_v))``.
        keys_values: ``(memory_rows, heads * (d_k + d_v))``, or None for self-attention.
        packing: The sentences of the queries.
        key_packing: The sentences of the keys, as many.
        shape: Of the heads.

    Returns:
        ``(rows, heads * d_v)``, 0 for filler.
    """
    attended: Tensor = _PackedAttention.apply(queries, keys_values, packing, key_packing, shape)  # type: ignore[no-untyped-call]
    return attended


def attend_memory(
    queries: Tensor, keys_values: Tensor, row_cu: Tensor, begins: Tensor, ends: Tensor, shape: HeadShape
) -> Tensor:
    """Attention of each sentence's rows to the sentence's part of a packed memory, for decoding: no gradient.

    Args:
        queries: ``(rows, heads * d_k)``, the rows of a sentence one after the other.
        keys_values: ``(memory_rows, heads * (d_k + d_v))``.
        row_cu: Cumulative numbers of the sentences' rows, ``(sentences + 1,)`` int32.
        begins: First row of each sentence's memory, ``(sentences,)`` int32.
        ends: One more than its last row, ``(sentences,)`` int32.
        shape: Of the heads.

    Returns:
        ``(rows, heads * d_v)``.
    """
    rows = queries.shape[0]
    out, log_masses = queries.new_empty(rows, shape.heads * shape.d_v), _fp32(rows, shape.heads)
    heads = _heads(queries.contiguous(), keys_values, shape)
    _call("attention", queries, *heads, row_cu, begins, ends, begins.numel(), *_plain(shape), out, log_masses)
    return out


def attend_path(past: Sequence[Tensor], path: Tensor, shape: HeadShape) -> Tensor:
    """Attention of each row to the positions on its path, for decoding: no gradient.

    Args:
        past: Queries, keys and values of the rows that there were at each position, ``(its rows, heads * (2 * d_k +
            d_v))``, contiguous; those of the last position attend.
        path: Which row of each position is on their path, ``(rows, length)`` int32, contiguous.
        shape: Of the heads.

    Returns:
        ``(rows, heads * d_v)``.
    """
    rows, length = path.shape
    assert path.dtype == torch.int32
    assert all(tensor.is_contiguous() for tensor in (path, *past))
    out = past[-1].new_empty(rows, shape.heads * shape.d_v)
    positions = torch.tensor([position.data_ptr() for position in past], dtype=torch.int64, device="cpu")
    _call("attend_path", out, positions, path, rows, length, *_plain(shape)[:3], out)
    return out


def pack_linear(weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Callable[[Tensor], Tensor]:
    """As :func:`multiply`, with a copy of the weights in the order in which oneDNN reads them, for several products.

    Otherwise the weights are laid out again for every product. With few rows one takes up to a third less time so.

    Args:
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)``, or None.
        relu: Whether what is negative becomes 0.

    Returns:
        ``(rows, in_features)`` to ``(rows, out_features)``.
    """
    if _has_onednn(weight.dtype):
        weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return lambda x: multiply(x, weight, bias, relu=relu)


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@lru_cache
def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether PyTorch has oneDNN's products and they are right: they are its own compiler's, and no other's by promise.

    Tried on whole numbers that every precision holds: weights as they lie, transposed as for gradients, and packed.
    """
    numbers = torch.arange(8 * 24, dtype=torch.float32, device="cpu")
    x, weight = (numbers % 7 - 3.0).view(8, 24).to(dtype), (numbers % 5 - 2.0).view(8, 24).to(dtype)
    turned, bias = weight.t().contiguous().t(), weight[:, 0].contiguous()
    try:
        packed = [torch.ops.mkldnn._reorder_linear_weight(tried) for tried in (weight, turned)]
        return all(
            torch.equal(_onednn_linear(x, tried, added), F.linear(x, weight, added))
            for tried in (weight, turned, *packed)
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
        grad, of_bias = _bias_relu_backward(grad.contiguous(), out) if ctx.biased or ctx.relu else (grad, None)
        of_x = multiply(grad, weight.t()) if ctx.needs_input_grad[0] else None
        of_weight = weight_gradient(grad, x) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, of_bias if ctx.biased else None, None


def _bias_relu_backward(grad: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient before ReLU, of whose output there is one, and that of the bias."""
    rows, width = grad.shape
    if width % LANES:
        grad = grad if out is None else grad.masked_fill(out <= 0, 0.0)
        return grad, grad.sum(dim=0)
    sums = _fp32(width).zero_()
    passed = grad if out is None else torch.empty_like(grad)
    _call("bias_relu_backward", grad, grad, 0 if out is None else out, rows, width, passed, sums)
    return passed, sums.to(grad.dtype)


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, dropout: float) -> Tensor:
        x, y = x.contiguous(), y.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if dropout else 0
        ctx.drop = (seed, round(dropout * _LEVELS), 1.0 / (1.0 - dropout))
        out, summed = torch.empty_like(x), torch.empty_like(x)
        mean, rstd = _fp32(2, rows)
        _call("residual_norm", x, x, y, gain, bias, rows, width, eps, *ctx.drop, out, summed, mean, rstd)
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
        grad_gain, grad_bias = _fp32(2, len(gain)).zero_()
        _call(
            "residual_norm_backward", grad, grad, summed, gain, mean, rstd, len(mean), len(gain), *ctx.drop,
            grad_x, grad_y, grad_gain, grad_bias,
        )  # fmt: skip
        return grad_x, grad_y, grad_gain.to(grad.dtype), grad_bias.to(grad.dtype), None, None


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys_values: Tensor | None, packing: Packing, keys: Packing, shape: HeadShape
    ) -> Tensor:
        queries = queries.contiguous()
        keys_values = None if keys_values is None else keys_values.contiguous()
        out = queries.new_empty(queries.shape[0], shape.heads * shape.d_v)
        log_masses = _fp32(queries.shape[0], shape.heads)
        heads = _heads(queries, keys_values, shape)
        _call("attention", queries, *heads, *_sentences(packing, keys, shape), out, log_masses)
        out[packing.tokens :] = 0.0
        ctx.packing, ctx.keys, ctx.shape = packing, keys, shape
        ctx.save_for_backward(queries, keys_values, log_masses)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys_values, log_masses = ctx.saved_tensors
        grad_queries = torch.empty_like(queries)
        grad_keys_values = None if keys_values is None else torch.empty_like(keys_values)
        heads = _heads(queries, keys_values, ctx.shape)
        grad_q, _, grad_k, grad_v, _ = _heads(grad_queries, grad_keys_values, ctx.shape)
        sentences = _sentences(ctx.packing, ctx.keys, ctx.shape)
        _call("attention_backward", grad, grad.contiguous(), *heads, log_masses, *sentences, grad_q, grad_k, grad_v)
        grad_queries[ctx.packing.tokens :] = 0.0
        if grad_keys_values is not None:
            grad_keys_values[ctx.keys.tokens :] = 0.0
        return grad_queries, grad_keys_values, None, None, None


def _heads(queries: Tensor, keys_values: Tensor | None, shape: HeadShape) -> tuple[Tensor, int, Tensor, Tensor, int]:
    """Where queries, keys and values begin, and the elements between two of their rows."""
    key_width = shape.heads * shape.d_k
    keys = queries[:, key_width:] if keys_values is None else keys_values
    return queries, queries.stride(0), keys, keys[:, key_width:], keys.stride(0)


def _sentences(packing: Packing, keys: Packing, shape: HeadShape) -> tuple[Tensor | int, ...]:
    """Where sentences begin and end, and how many there are; then the shape of the heads."""
    return packing.cu, keys.cu, keys.cu[1:], packing.sentences, *_plain(shape)


def _fp32(*shape: int) -> Tensor:
    """Memory for what a kernel writes in fp32, whatever PyTorch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _plain(shape: HeadShape) -> tuple[int, int, int, int]:
    return shape.heads, shape.d_k, shape.d_v, int(shape.causal)


def _call(kernel: str, like: Tensor, *arguments: Tensor | int | float) -> None:
    """Run a kernel in the precision of ``like``; of a tensor it gets the address."""
    library = kernels()
    assert library is not None
    function = getattr(library, f"{kernel}_{NAMES[like.dtype]}")
    plain = (argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments)
    function(*plain, torch.get_num_threads())
