"""Attention on a CPU with compiled kernels, without padding: of whole sentences, and of one position at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dstransformer.data.packing import Packing
from dstransformer.model.ops.library import call, empty_fp32
from dstransformer.model.ops.reference import HeadShape


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
