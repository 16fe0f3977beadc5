"""The layer types of the paper's Table 1, with formulas for their operations and path lengths (paper, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


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
class LayerType:
    """A row of the table.

    Attributes:
        name: As in the paper.
        complexity: The paper's complexity per layer. The paper has no row for attention with its projections; its order
            is the sum of both parts.
        sequential: The paper's sequential operations.
        path: The paper's maximum path length.
        formula: ``multiply_adds`` in words.
        multiply_adds: Multiply-adds of the forward pass over one sequence, without those of softmax and tanh.
        sequential_operations: Positions that have to be computed one after the other.
        path_length: Layers, or steps in time, that a signal crosses between the input and the output positions that are
            farthest apart.
    """

    name: str
    complexity: str
    sequential: str
    path: str
    formula: str
    multiply_adds: Callable[[Size], int]
    sequential_operations: Callable[[Size], int]
    path_length: Callable[[Size], int]


def window(r: int) -> tuple[int, int]:
    """The positions before and after its own that a position attends to, with itself ``r`` in all."""
    return r // 2, (r - 1) // 2


def attended_pairs(n: int, r: int) -> int:
    """Pairs of query and key in restricted self-attention: ``r`` for each position, fewer at the ends."""
    return n + sum(_pairs_on_one_side(n, reach) for reach in window(r))


def _pairs_on_one_side(n: int, reach: int) -> int:
    reach = min(reach, n - 1)
    return n * reach - reach * (reach + 1) // 2


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


SELF_ATTENTION = LayerType(
    name="self-attention",
    complexity="O(n²·d)",
    sequential="O(1)",
    path="O(1)",
    formula="2·n²·d",
    multiply_adds=lambda size: 2 * size.n**2 * size.d,
    sequential_operations=lambda _: 1,
    path_length=lambda _: 1,
)

PROJECTED_ATTENTION = LayerType(
    name="self-attention with projections",
    complexity="O(n²·d + n·d²)",
    sequential="O(1)",
    path="O(1)",
    formula="2·n²·d + 4·n·d²",
    multiply_adds=lambda size: 2 * size.n**2 * size.d + 4 * size.n * size.d**2,
    sequential_operations=lambda _: 1,
    path_length=lambda _: 1,
)

RESTRICTED_ATTENTION = LayerType(
    name="restricted self-attention",
    complexity="O(r·n·d)",
    sequential="O(1)",
    path="O(n/r)",
    formula="2·r·n·d, less at the ends",
    multiply_adds=lambda size: 2 * attended_pairs(size.n, size.r) * size.d,
    sequential_operations=lambda _: 1,
    path_length=lambda size: restricted_path_length(size.n, size.r),
)

RECURRENT = LayerType(
    name="recurrent",
    complexity="O(n·d²)",
    sequential="O(n)",
    path="O(n)",
    formula="2·n·d²",
    multiply_adds=lambda size: 2 * size.n * size.d**2,
    sequential_operations=lambda size: size.n,
    path_length=lambda size: size.n,
)

CONVOLUTIONAL = LayerType(
    name="convolutional",
    complexity="O(k·n·d²)",
    sequential="O(1)",
    path="O(log_k(n))",
    formula="k·n·d²",
    multiply_adds=lambda size: size.k * size.n * size.d**2,
    sequential_operations=lambda _: 1,
    path_length=lambda size: dilated_path_length(size.n, size.k),
)

#: The rows of the table, in the paper's order. Attention with projections is not in the paper's table.
LAYER_TYPES = (SELF_ATTENTION, RECURRENT, CONVOLUTIONAL, RESTRICTED_ATTENTION, PROJECTED_ATTENTION)
