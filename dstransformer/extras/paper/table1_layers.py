"""The layer types of the paper's Table 1: their operations and path lengths as formulas, and one layer of each type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Size(NamedTuple):
    """The size of a layer, in the paper's letters.

    Attributes:
        n: Length of the sequence.
        d: Width of the representation of a position.
        k: Width of the convolution's kernel.
        r: Size of the neighbourhood of restricted self-attention.
    """

    n: int
    d: int
    k: int
    r: int


@dataclass(frozen=True)
class Layer:
    """A layer with its inputs.

    Attributes:
        forward: Computes the output.
        leaves: Inputs and weights; the backward pass computes the gradient of each.
    """

    forward: Callable[[], Tensor]
    leaves: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class LayerType:
    """A row of the table.

    Attributes:
        name: As in the paper.
        complexity: The paper's complexity per layer. The paper has no row for attention with its projections; its order
            is the sum of both parts.
        formula: ``multiply_adds`` in words.
        multiply_adds: Multiply-adds of the forward pass over one sequence, without those of softmax and tanh.
        build: Builds a layer without biases from its size, the number of sequences and the device, with random fp32
            inputs and weights.
        sequential: The paper's sequential operations.
        sequential_operations: Positions that have to be computed one after the other.
        path: The paper's maximum path length.
        path_length: Layers, or steps in time, that a signal crosses between the input and the output positions that are
            farthest apart.
    """

    name: str
    complexity: str
    formula: str
    multiply_adds: Callable[[Size], int]
    build: Callable[[Size, int, torch.device], Layer]
    sequential: str = "O(1)"
    sequential_operations: Callable[[Size], int] = lambda _: 1
    path: str = "O(1)"
    path_length: Callable[[Size], int] = lambda _: 1


def window(r: int) -> tuple[int, int]:
    """The positions before and after its own that a position attends to, with itself ``r`` in all."""
    return r // 2, (r - 1) // 2


def attended_pairs(n: int, r: int) -> int:
    """Pairs of query and key in restricted self-attention: ``r`` for each position, fewer at the ends."""
    reaches = [min(reach, n - 1) for reach in window(r)]
    return n + sum(n * reach - reach * (reach + 1) // 2 for reach in reaches)


def restricted_path_length(n: int, r: int) -> int:
    """Layers of restricted self-attention between any two positions: the narrower side of the window per layer."""
    return max(1, -(-(n - 1) // min(window(r))))


def dilated_path_length(n: int, k: int) -> int:
    """Layers of causal convolutions with dilations 1, k, k², … until the last position depends on the first.

    That is ``log_k(n)``, rounded up. With whole numbers, because the logarithm in floating point is off by one at
    some powers.
    """
    layers, reached = 1, k
    while reached < n:
        layers, reached = layers + 1, reached * k
    return layers


def contiguous_path_length(n: int, k: int) -> int:
    """Layers of causal convolutions without dilation until the last position depends on the first: O(n/k)."""
    return max(1, -(-(n - 1) // (k - 1)))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``softmax(q k^T / sqrt(d)) v`` (equation 1) with one head, step by step: the n² weights are stored.

    Args:
        q: ``(batch, n, d)``.
        k: ``(batch, n, d)``.
        v: ``(batch, n, d)``.

    Returns:
        ``(batch, n, d)``.
    """
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    attended: Tensor = scores.softmax(dim=-1) @ v
    return attended


def restricted_attention(q: Tensor, k: Tensor, v: Tensor, r: int) -> Tensor:
    """Attention of each position to the ``r`` positions around it (section 4), in O(r·n·d).

    Queries are cut into blocks of ``r``. A block's windows lie within ``2 r - 1`` keys, which are a view of the padded
    keys. Scores outside of a window, about half, are computed and masked.

    Args:
        q: ``(batch, n, d)``.
        k: ``(batch, n, d)``.
        v: ``(batch, n, d)``.
        r: The size of the window, see :func:`window`.

    Returns:
        ``(batch, n, d)``.
    """
    batch, n, d = q.shape
    before, after = window(r)
    blocks = -(-n // r)
    rest = blocks * r - n
    queries = F.pad(q, (0, 0, 0, rest)).view(batch, blocks, r, d)
    keys = F.pad(k, (0, 0, before, rest + after)).unfold(1, 2 * r - 1, r)  # (batch, blocks, d, 2 r - 1)
    values = F.pad(v, (0, 0, before, rest + after)).unfold(1, 2 * r - 1, r)
    scores = (queries @ keys * d**-0.5).masked_fill(_outside(n, r, q.device), float("-inf"))
    out: Tensor = scores.softmax(dim=-1) @ values.transpose(-2, -1)
    return out.view(batch, blocks * r, d)[:, :n]


@lru_cache(maxsize=2)
def _outside(n: int, r: int, device: torch.device) -> Tensor:
    """``(blocks, r, 2 r - 1)``: which keys a query does not see. Queries that are padding see padding."""
    before, _ = window(r)
    blocks = -(-n // r)
    query = torch.arange(r, device=device)[None, :, None]
    key = torch.arange(2 * r - 1, device=device)[None, None, :]
    start = torch.arange(blocks, device=device)[:, None, None] * r
    position = start + key - before
    is_padding = ((position < 0) | (position >= n)) & (start + query < n)
    return (key < query) | (key >= query + r) | is_padding


def _inputs(count: int, size: Size, batch: int, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.randn(batch, size.n, size.d, device=device, requires_grad=True) for _ in range(count))


def _self_attention(size: Size, batch: int, device: torch.device) -> Layer:
    """Self-attention as the paper's table counts it: on given queries, keys and values."""
    q, k, v = _inputs(3, size, batch, device)
    return Layer(lambda: attention(q, k, v), (q, k, v))


def _projected_attention(size: Size, batch: int, device: torch.device) -> Layer:
    (x,) = _inputs(1, size, batch, device)
    project_in = nn.Linear(size.d, 3 * size.d, bias=False, device=device)
    project_out = nn.Linear(size.d, size.d, bias=False, device=device)
    return Layer(
        lambda: project_out(attention(*project_in(x).chunk(3, dim=-1))),
        (x, project_in.weight, project_out.weight),
    )


def _restricted_attention(size: Size, batch: int, device: torch.device) -> Layer:
    q, k, v = _inputs(3, size, batch, device)
    return Layer(lambda: restricted_attention(q, k, v, size.r), (q, k, v))


def _recurrent(size: Size, batch: int, device: torch.device) -> Layer:
    """``nn.RNN`` with tanh."""
    (x,) = _inputs(1, size, batch, device)
    layer = nn.RNN(size.d, size.d, bias=False, batch_first=True, device=device)
    return Layer(lambda: layer(x)[0], (x, *layer.parameters()))


def _convolutional(size: Size, batch: int, device: torch.device) -> Layer:
    """A causal ``nn.Conv1d``."""
    x = torch.randn(batch, size.d, size.n, device=device, requires_grad=True)
    layer = nn.Conv1d(size.d, size.d, size.k, padding=size.k - 1, bias=False, device=device)
    return Layer(lambda: layer(x)[..., : size.n], (x, *layer.parameters()))


SELF_ATTENTION = LayerType(
    name="self-attention",
    complexity="O(n²·d)",
    formula="2·n²·d",
    multiply_adds=lambda size: 2 * size.n**2 * size.d,
    build=_self_attention,
)

PROJECTED_ATTENTION = LayerType(
    name="self-attention with projections",
    complexity="O(n²·d + n·d²)",
    formula="2·n²·d + 4·n·d²",
    multiply_adds=lambda size: 2 * size.n**2 * size.d + 4 * size.n * size.d**2,
    build=_projected_attention,
)

RESTRICTED_ATTENTION = LayerType(
    name="restricted self-attention",
    complexity="O(r·n·d)",
    formula="2·r·n·d, less at the ends",
    multiply_adds=lambda size: 2 * attended_pairs(size.n, size.r) * size.d,
    build=_restricted_attention,
    path="O(n/r)",
    path_length=lambda size: restricted_path_length(size.n, size.r),
)

RECURRENT = LayerType(
    name="recurrent",
    complexity="O(n·d²)",
    formula="2·n·d²",
    multiply_adds=lambda size: 2 * size.n * size.d**2,
    build=_recurrent,
    sequential="O(n)",
    sequential_operations=lambda size: size.n,
    path="O(n)",
    path_length=lambda size: size.n,
)

CONVOLUTIONAL = LayerType(
    name="convolutional",
    complexity="O(k·n·d²)",
    formula="k·n·d²",
    multiply_adds=lambda size: size.k * size.n * size.d**2,
    build=_convolutional,
    path="O(log_k(n))",
    path_length=lambda size: dilated_path_length(size.n, size.k),
)

#: The rows of the table, in the paper's order. Attention with projections is not in the paper's table.
LAYER_TYPES = (SELF_ATTENTION, RECURRENT, CONVOLUTIONAL, RESTRICTED_ATTENTION, PROJECTED_ATTENTION)
