"""Attention within short packed sentences on a GPU: one Triton kernel forward and one backward.

Flash attention (Dao, 2023) computes blocks of 128 x 128, and its backward pass clears, adds to and reads gradients of
queries in fp32 for 128 rows of each sentence. A sentence of WMT14 has about 29. Here blocks have 32 rows, and one
program has a whole sentence of a head, so no program adds to what another one wrote.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dstransformer.data.packing import Packing
from dstransformer.model.ops.gpu_attention_kernels import attention_backward_kernel, attention_kernel
from dstransformer.model.ops.gpu_library import register
from dstransformer.model.ops.reference import HeadShape

#: Tokens of a block, and the smallest width of one that matrix units multiply.
BLOCK, MIN_WIDTH = 32, 16

#: Bytes of a row of one head that a warp holds: for heads of 64 in bf16 a program has four, and a multiprocessor has
#: registers for at least four programs.
WARP_BYTES = 32


def attention(
    queries: Tensor, keys_values: Tensor | None, packing: Packing, key_packing: Packing, shape: HeadShape
) -> Tensor:
    """Attention within each sentence, see :func:`dstransformer.model.ops.attention`; every sentence has a key.

    The gradient of each projection is one tensor. The time grows with the square of the length of the longest sentence.
    """
    key_cu = None if keys_values is None else key_packing.cu  # the compiler takes no tensor twice
    out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        queries, keys_values, packing.cu, key_cu, packing.tokens, key_packing.tokens, *shape
    )
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys_values: Tensor | None, cu: Tensor, key_cu: Tensor | None, *numbers: int
    ) -> Tensor:
        queries, keys_values = queries.contiguous(), None if keys_values is None else keys_values.contiguous()
        out: Tensor
        out, log_sums = torch.ops.dstransformer.short_attention(queries, keys_values, cu, key_cu, *numbers)
        ctx.save_for_backward(queries, keys_values, out, log_sums, cu, key_cu)
        ctx.numbers = numbers
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # checkpointing hands them out once
        grad_queries, grad_keys_values = torch.ops.dstransformer.short_attention_backward(
            grad.contiguous(), *saved, *ctx.numbers
        )
        return grad_queries, None if saved[1] is None else grad_keys_values, *[None] * (2 + len(ctx.numbers))


def launch_attention(
    queries: Tensor, keys_values: Tensor | None, cu: Tensor, key_cu: Tensor | None, tokens: int, key_tokens: int,
    *numbers: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The results, 0 for filler, and the logarithms of the sums of the softmax, ``(heads, rows)`` fp32.

    ``keys_values`` and ``key_cu`` are None in self-attention.
    """
    out, log_sums = results = _empty_results(queries, keys_values, cu, key_cu, tokens, key_tokens, *numbers)
    shape = HeadShape(*numbers)
    parts = _split(queries, keys_values, shape)
    attention_kernel[_programs(cu, shape)](
        *parts, cu, cu if key_cu is None else key_cu, out, log_sums, len(out), shape.d_k**-0.5,
        **_constants(shape, parts[0].shape[1], parts[1].stride(0), out.element_size()),
    )  # fmt: skip
    _clear_filler(out, tokens)
    return results


def launch_attention_backward(
    grad: Tensor, queries: Tensor, keys_values: Tensor | None, out: Tensor, log_sums: Tensor, cu: Tensor,
    key_cu: Tensor | None, tokens: int, key_tokens: int, *numbers: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of both projections, 0 for filler; the second has no elements in self-attention."""
    grad_queries, grad_keys_values = results = _empty_gradients(grad, queries, keys_values)
    shape = HeadShape(*numbers)
    parts = _split(queries, keys_values, shape)
    grad_parts = _split(grad_queries, None if keys_values is None else grad_keys_values, shape)
    attention_backward_kernel[_programs(cu, shape)](
        grad, *parts, out, log_sums, cu, cu if key_cu is None else key_cu, *grad_parts, len(out), shape.d_k**-0.5,
        **_constants(shape, parts[0].shape[1], parts[1].stride(0), out.element_size()),
    )  # fmt: skip
    _clear_filler(grad_queries, tokens)
    _clear_filler(grad_keys_values, key_tokens)
    return results


def _programs(cu: Tensor, shape: HeadShape) -> tuple[int]:
    return ((cu.numel() - 1) * shape.heads,)


def _split(queries: Tensor, keys_values: Tensor | None, shape: HeadShape) -> tuple[Tensor, Tensor, Tensor]:
    """Where the queries, keys and values of the first head begin."""
    width = shape.heads * shape.d_k
    keys = queries[:, width:] if keys_values is None else keys_values
    return queries, keys, keys[:, width:]


@lru_cache
def _constants(shape: HeadShape, q_row: int, k_row: int, element_size: int) -> dict[str, int]:
    """What the compiler knows; all of it is the same for every batch of a model."""
    block_k, block_v = (max(MIN_WIDTH, triton.next_power_of_2(width)) for width in (shape.d_k, shape.d_v))
    return {
        "HEADS": shape.heads,
        "D_K": shape.d_k,
        "D_V": shape.d_v,
        "Q_ROW": q_row,
        "K_ROW": k_row,
        "CAUSAL": shape.causal,
        "BLOCK": BLOCK,
        "BLOCK_K": block_k,
        "BLOCK_V": block_v,
        "num_warps": min(8, max(2, max(block_k, block_v) * element_size // WARP_BYTES)),
        "num_stages": 1,  # most sentences are one block, so there is no next one to fetch meanwhile
    }


def _clear_filler(x: Tensor, tokens: int) -> None:
    if len(x) > tokens:
        x[tokens:] = 0.0


def _empty_results(queries: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    heads, _, d_v, _ = others[-4:]
    rows = queries.shape[0]
    log_sums = torch.empty((heads, rows), dtype=torch.float32, device=queries.device)
    return queries.new_empty((rows, heads * d_v)), log_sums


def _empty_gradients(_grad: Tensor, queries: Tensor, keys_values: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(queries), queries.new_empty(0) if keys_values is None else torch.empty_like(keys_values)


_NUMBERS = "SymInt tokens, SymInt key_tokens, int heads, int d_k, int d_v, bool causal"

register(
    f"short_attention(Tensor queries, Tensor? keys_values, Tensor cu, Tensor? key_cu, {_NUMBERS}) -> (Tensor, Tensor)",
    launch_attention,
    _empty_results,
)
register(
    "short_attention_backward(Tensor grad, Tensor queries, Tensor? keys_values, Tensor out, Tensor log_sums, "
    f"Tensor cu, Tensor? key_cu, {_NUMBERS}) -> (Tensor, Tensor)",
    launch_attention_backward,
    _empty_gradients,
)
