"""The operations of the model, and the choice of the implementation of each, which is made only here.

:mod:`dstransformer.model.ops.reference` has the formulas. On a CPU, compiled kernels and oneDNN replace most of them
(``cpu``). On a GPU PyTorch compiles the formulas themselves (:func:`compiled_on_cuda`), and its flash attention
replaces attention (``varlen``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from dstransformer.config import Activation
from dstransformer.data.packing import Packing
from dstransformer.model.ops import cpu, reference, varlen
from dstransformer.model.ops.caches import PackedCaches, PaddedCaches
from dstransformer.model.ops.library import LANES, can_compute
from dstransformer.model.ops.reference import HeadShape
from dstransformer.model.ops.rounding import rounded
from dstransformer.model.ops.varlen import Backend

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

#: The types of the devices for which functions are compiled.
COMPILED = ("cuda",)


def compiled_on_cuda(function: Callable[P, R]) -> Callable[P, R]:
    """Let PyTorch compile a function of the reference for tensors on a CUDA device.

    The number of rows is dynamic, so no new length compiles anew (but 0 and 1 row do); the width of the first model in
    a process is static, so the compiler knows how its rows are aligned. Elsewhere, inside a larger graph of the user's,
    and where the compiler cannot run, the function itself runs.

    Args:
        function: Its first argument is a tensor; every matrix, and every vector of integers, has a row a token.
    """
    compiled: Callable[P, R] | None = None

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal compiled
        first = args[0]
        assert isinstance(first, Tensor)
        if first.device.type not in COMPILED or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        from torch._dynamo import config, maybe_mark_dynamic  # here, as it takes seconds and a CPU does without
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        if config.disable:  # TORCH_COMPILE_DISABLE=1
            return function(*args, **kwargs)
        if compiled is None:
            compiled = torch.compile(function, fullgraph=True)
        for tensor in args:
            if isinstance(tensor, Tensor) and (tensor.dim() > 1 or not tensor.is_floating_point()):
                maybe_mark_dynamic(tensor, 0)
        try:
            return compiled(*args, **kwargs)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            _warn_of_compiler(" ".join(str(error).split())[:300])
            compiled = function
            return function(*args, **kwargs)

    return run


@cache
def _warn_of_compiler(reason: str) -> None:
    logger.warning("no longer compiles for the GPU, so it is slower and draws other dropout masks: %s", reason)


def compiler_name() -> str:
    """The version of Triton, with which PyTorch compiles for a GPU; ``none`` without it."""
    try:
        import triton
    except ImportError:
        return "none"
    return f"triton {triton.__version__}"


_bias_activation = compiled_on_cuda(reference.bias_activation)
_residual_norm = compiled_on_cuda(reference.residual_norm)
_cross_entropy = compiled_on_cuda(reference.cross_entropy)
_r_drop_cross_entropy = compiled_on_cuda(reference.r_drop_cross_entropy)
_best_pieces = compiled_on_cuda(reference.best_pieces)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, activation: Activation | None = None) -> Tensor:
    """``x W^T + b``, or with ReLU ``max(0, x W^T + b)`` (section 3.3), or another activation of it.

    Args:
        x: ``(rows, in_features)``.
        weight: ``(out_features, in_features)``. If its precision is another than that of ``x``, it is rounded to it.
        bias: ``(out_features,)``, or None without activation, in the precision of the weights.
        activation: One of ``reference.ACTIVATIONS``, or None. NaN stays NaN.

    Returns:
        ``(rows, out_features)``, in the precision of ``x``.
    """
    if can_compute(x):
        bias = None if bias is None else rounded(bias, x.dtype)
        if activation is None or activation == "relu":
            return cpu.linear(x, rounded(weight, x.dtype), bias, relu=activation == "relu")
        return reference.ACTIVATIONS[activation](cpu.linear(x, rounded(weight, x.dtype), bias))
    if activation is None:
        return reference.linear(x, weight, bias)
    assert bias is not None
    return _bias_activation(reference.linear(x, weight, None), bias, activation)


def prepare_linear(
    weight: Tensor, bias: Tensor | None = None, *, activation: Activation | None = None, repeated: bool = True
) -> Callable[[Tensor], Tensor]:
    """:func:`linear` with fixed weights and without gradient.

    Args:
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)``, or None.
        activation: As for :func:`linear`.
        repeated: Several products follow, so a copy of the weights in the order that the product reads them in pays.
    """
    relu = activation == "relu" and can_compute(weight)
    if activation is not None and not relu:
        product, function = prepare_linear(weight, bias, repeated=repeated), reference.ACTIVATIONS[activation]
        return lambda x: function(product(x))
    if not can_compute(weight):
        return lambda x: reference.linear(x, weight, bias)
    if repeated:
        return cpu.prepare_linear(weight, bias, relu=relu)
    return lambda x: cpu.multiply(x, weight, bias, relu=relu)


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of the weights of ``x W^T``: ``grad^T x``. It has no gradient itself.

    Args:
        grad: The gradient of the product, ``(rows, out_features)``.
        x: ``(rows, in_features)``.

    Returns:
        ``(out_features, in_features)``, in fp32 for fp16, and on a GPU for bf16 too.
    """
    if can_compute(grad, x):
        return cpu.weight_gradient(grad, x)
    return reference.weight_gradient(grad, x)


def residual_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, p: float) -> Tensor:
    """``LayerNorm(x + Dropout(y))`` (sections 3.1 and 5.4).

    Args:
        x: ``(…, d_model)``.
        y: Of the same shape.
        gain: ``(d_model,)``. If its precision is another than that of ``x``, it is rounded to it.
        bias: As ``gain``.
        eps: Added to the variance.
        p: Probability that an element of ``y`` is dropped, less than 1.
    """
    gain, bias = rounded(gain, x.dtype), rounded(bias, x.dtype)
    if x.shape[-1] % LANES == 0 and can_compute(x, y, gain):
        return cpu.residual_norm(x, y, gain, bias, eps, p)
    return _residual_norm(x, y, gain, bias, eps, p)


def cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float, gradient_scale: float | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Label-smoothed cross-entropy (section 5.4), summed over tokens, and its gradient.

    Args:
        logits: ``(rows, pieces)``, contiguous; rows beyond the targets are filler. The gradient may replace them.
        targets: ``(tokens,)`` int64.
        label_smoothing: epsilon, spread evenly over all pieces.
        gradient_scale: The gradient is multiplied by it before it is rounded; None computes no gradient.

    Returns:
        The smoothed loss and the negative log-likelihood, scalars in fp32, and the gradient of the former with respect
        to the logits: ``(rows, pieces)``, 0 for filler.
    """
    if gradient_scale != 1.0 or not can_compute(logits):
        return _cross_entropy(logits, targets, label_smoothing, gradient_scale)
    tokens = targets.numel()
    loss, nll = cpu.cross_entropy_(logits[:tokens], targets, label_smoothing)
    logits[tokens:] = 0.0
    return loss.sum(), nll.sum(), logits


def r_drop_cross_entropy(
    logits: tuple[Tensor, Tensor], targets: Tensor, label_smoothing: float, alpha: float, gradient_scale: float | None
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Half the loss of R-Drop (Liang et al., 2021, equation 4), summed over tokens, for two passes of the same tokens.

    Args:
        logits: Of the first and of the second pass, ``(tokens, pieces)`` each, contiguous. The gradients may replace
            them.
        targets: ``(tokens,)`` int64.
        label_smoothing: epsilon.
        alpha: Weight of the divergence.
        gradient_scale: As for :func:`cross_entropy`.

    Returns:
        The loss and the mean negative log-likelihood of the two passes, scalars in fp32, and the gradients of the loss
        with respect to the logits.
    """
    if gradient_scale == 1.0 and can_compute(*logits):
        loss, nll = cpu.r_drop_cross_entropy_(logits, targets, label_smoothing, alpha)
        return loss.sum(), nll.sum(), logits
    return _r_drop_cross_entropy(*logits, targets, label_smoothing, alpha, gradient_scale)


def best_pieces(logits: Tensor, first: int, end: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logits of each row among the pieces from ``first`` to before ``end``.

    Args:
        logits: ``(rows, pieces)``.
        first: The first piece that may be chosen.
        end: One more than the last.
        count: How many to choose, at most ``end - first``.

    Returns:
        Logits, best first, and their pieces, ``(rows, count)`` fp32 and int64; and the logarithm of the sum of the
        exponentials of all logits of a row, ``(rows,)`` fp32.
    """
    if can_compute(logits):
        return cpu.best_pieces(logits, first, end, count)
    return _best_pieces(logits, first, end, count)


def attention(
    queries: Tensor,
    keys_values: Tensor | None,
    packing: Packing,
    key_packing: Packing,
    shape: HeadShape,
    p: float,
    backend: Backend,
) -> Tensor:
    """Scaled dot-product attention within each sentence (equation 1).

    Args:
        queries: ``(packing.rows, heads * d_k)``; for self-attention each row also has its keys and values,
            ``heads * (2 * d_k + d_v)`` wide.
        keys_values: ``(key_packing.rows, heads * (d_k + d_v))``, or None for self-attention.
        packing: The sentences of the queries.
        key_packing: The sentences of the keys, as many.
        shape: The shape of the heads.
        p: Probability that an attention weight is dropped.
        backend: ``auto`` is the fastest that can run; ``varlen`` is ``auto`` without the kernels for a CPU; ``padded``
            is the reference.

    Returns:
        ``(packing.rows, heads * d_v)``, 0 for filler.
    """
    if backend != "padded" and varlen.can_compute(queries, shape, p):
        return varlen.attention(queries, keys_values, packing, key_packing, shape)
    if backend == "auto" and p == 0.0 and can_compute(queries):
        return cpu.attention(queries, keys_values, packing, key_packing, shape)
    return reference.attention(queries, keys_values, packing, key_packing, shape, p)


def build_caches(
    memory: Tensor,
    projections: Sequence[Callable[[Tensor], Tensor]],
    packing: Packing,
    shape: HeadShape,
    beam_size: int,
) -> PackedCaches | PaddedCaches:
    """Empty caches for incremental decoding.

    Args:
        memory: ``(packing.rows, d_model)``.
        projections: For each layer the function from the memory to its keys and values.
        packing: The sentences of the memory.
        shape: The shape of the heads.
        beam_size: Maximum rows per sentence.
    """
    memories = (project(memory) for project in projections)
    if can_compute(memory):
        return PackedCaches(memories, packing, shape)
    return PaddedCaches(memories, packing, shape, beam_size)
