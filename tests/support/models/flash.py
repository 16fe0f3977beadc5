"""A plain kernel for a CPU under PyTorch's flash attention, which has none there: one sentence at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def flash_attention_on_cpu() -> Iterator[list[tuple[int, int]]]:
    """Register the kernels; yield the longest query and key of each call.

    They check what the CUDA kernels rely on: cumulative lengths in int32, maxima that hold, one width of heads that is
    a multiple of 8, and the window that goes with the causal mask.
    """
    calls: list[tuple[int, int]] = []

    def forward(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, p: float, causal: bool,
        debug: bool, *, scale: float, window_size_left: int, window_size_right: int, **unused: Any,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        calls.append((max_q, max_k))
        assert not debug
        _check(q, k, v, cu_q, cu_k, max_q, max_k, p)
        assert (window_size_left, window_size_right) == (-1, 0 if causal else -1)
        out = torch.full_like(q, torch.nan, memory_format=torch.contiguous_format)
        sums = torch.full((q.shape[1], q.shape[0]), torch.nan, dtype=q.dtype)
        for queries, keys in _sentences(cu_q, cu_k):
            scores = _scores(q[queries], k[keys], scale, causal)
            out[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[keys])
            sums[:, queries] = scores.logsumexp(-1)
        nothing = torch.empty(0)
        return out, sums, nothing, nothing.clone(), nothing.clone()

    def backward(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, cu_q: Tensor, cu_k: Tensor,
        max_q: int, max_k: int, p: float, causal: bool, state: Tensor, nothing: Tensor, *, scale: float,
        window_size_left: int, window_size_right: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        _check(q, k, v, cu_q, cu_k, max_q, max_k, p)
        assert (window_size_left, window_size_right) == (-1, 0 if causal else -1)
        dq, dk, dv = (torch.full_like(x, torch.nan, memory_format=torch.contiguous_format) for x in (q, k, v))
        for queries, keys in _sentences(cu_q, cu_k):
            weights = (_scores(q[queries], k[keys], scale, causal) - sums[:, queries, None]).exp()
            dv[keys] = torch.einsum("hqk,qhd->khd", weights, grad[queries])
            products = torch.einsum("qhd,khd->hqk", grad[queries], v[keys])
            products -= (grad[queries] * out[queries]).sum(-1).t()[..., None]
            products *= weights * scale
            dq[queries] = torch.einsum("hqk,khd->qhd", products, k[keys])
            dk[keys] = torch.einsum("hqk,qhd->khd", products, q[queries])
        return dq, dk, dv

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        yield calls


def _check(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, p: float) -> None:
    assert p == 0.0
    assert q.shape[1:] == k.shape[1:] == v.shape[1:]
    assert q.shape[2] % 8 == 0
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert cu_q.shape == cu_k.shape
    assert (int(cu_q[-1]), int(cu_k[-1])) == (len(q), len(k))
    assert (max_q, max_k) == (int(cu_q.diff().max()), int(cu_k.diff().max()))


def _sentences(cu_q: Tensor, cu_k: Tensor) -> Iterator[tuple[slice, slice]]:
    queries, keys = cu_q.tolist(), cu_k.tolist()
    for number in range(len(queries) - 1):
        yield slice(queries[number], queries[number + 1]), slice(keys[number], keys[number + 1])


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1), float("-inf"))
    return scores
