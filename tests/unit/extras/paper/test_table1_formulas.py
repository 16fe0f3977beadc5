"""The counts of Table 1 against graphs and real layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch.autograd.graph import Node
from torch.utils.flop_counter import FlopCounterMode

from dstransformer.extras.paper import table1_formulas as formulas
from dstransformer.extras.paper.table1_formulas import LayerType, Size
from dstransformer.extras.paper.table1_layers import build_layer

CPU = torch.device("cpu")

Sources = Callable[[int, int], Iterable[int]]  # (layer, position) -> the positions of the layer below that it reads


def layers_until_connected(n: int, sources: Sources, pairs: Iterable[tuple[int, int]]) -> int:
    """The layers until each pair's output depends on its input, by breadth-first search from the outputs."""
    return max(_height(sources, n, start, end) for start, end in pairs)


def _height(sources: Sources, n: int, start: int, end: int) -> int:
    height = 1
    while start not in _inputs_of(sources, n, height, end):
        height += 1
    return height


def _inputs_of(sources: Sources, n: int, height: int, end: int) -> set[int]:
    """The inputs that an output of a stack of this height depends on."""
    reached = {end}
    for layer in reversed(range(height)):
        reached = {low for high in reached for low in sources(layer, high) if 0 <= low < n}
    return reached


def all_pairs(n: int) -> list[tuple[int, int]]:
    return [(start, end) for start in range(n) for end in range(n)]


def dilated_sources(k: int) -> Sources:
    return lambda layer, high: range(high, high - k * k**layer, -(k**layer))


@pytest.mark.parametrize("r", [3, 4, 5, 8])
@pytest.mark.parametrize("n", [2, 3, 7, 12])
def test_restricted_path_length_is_that_of_its_graph(n: int, r: int) -> None:
    before, after = formulas.window(r)
    assert before + after + 1 == r
    found = layers_until_connected(n, lambda _, high: range(high - before, high + after + 1), all_pairs(n))
    assert formulas.restricted_path_length(n, r) == found


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("n", [2, 3, 8, 9, 10, 25, 26, 28])
def test_convolutional_path_lengths_are_those_of_their_graphs(n: int, k: int) -> None:
    ends = [(0, n - 1)]
    dilated = layers_until_connected(n, dilated_sources(k), ends)
    contiguous = layers_until_connected(n, lambda _, high: range(high, high - k, -1), ends)
    assert formulas.dilated_path_length(n, k) == dilated
    assert formulas.contiguous_path_length(n, k) == contiguous


@pytest.mark.parametrize("n", [4, 9, 11])
def test_a_dilated_stack_connects_every_earlier_position(n: int) -> None:
    height = formulas.dilated_path_length(n, 3)
    for end in range(n):
        assert _inputs_of(dilated_sources(3), n, height, end) == set(range(end + 1))


def test_counts_grow_with_the_orders_of_the_paper() -> None:
    powers = {1: 1, 3: 1, 4: 2, 9: 2, 10: 3, 27: 3, 28: 4, 3**12: 12, 3**12 + 1: 13}
    for n, layers in powers.items():
        assert formulas.dilated_path_length(n, 3) == layers
    long, longer = Size(1000, 8, 3, 16), Size(2000, 8, 3, 16)
    growth = {
        kind.name: (
            kind.sequential_operations(longer) / kind.sequential_operations(long),
            kind.path_length(longer) / kind.path_length(long),
        )
        for kind in formulas.LAYER_TYPES
    }
    assert growth["self-attention"] == growth["self-attention with projections"] == (1, 1)
    assert growth["recurrent"] == (2, 2)
    assert growth["convolutional"] == (1, 1)  # 7 layers each: between 3^6 and 3^7
    assert growth["restricted self-attention"] == (1, pytest.approx(2, rel=0.02))


def longest_chain(node: Node | None) -> int:
    """The operations on the longest path through the graph that PyTorch recorded."""
    return 0 if node is None else 1 + max((longest_chain(below) for below, _ in node.next_functions), default=0)


@pytest.mark.parametrize("kind", formulas.LAYER_TYPES, ids=lambda kind: kind.name)
def test_sequential_operations_grow_like_the_longest_chain(kind: LayerType) -> None:
    sizes = [Size(n, 4, 3, 3) for n in (3, 4, 6)]
    counted = [kind.sequential_operations(size) for size in sizes]
    chains = [longest_chain(build_layer(kind, size, 1, CPU).forward().grad_fn) for size in sizes]
    step = chains[1] - chains[0]  # operations of one position that wait for the previous one
    assert (step > 0) == (kind is formulas.RECURRENT)
    assert chains[2] - chains[1] == 2 * step
    assert counted == ([3, 4, 6] if step else [1, 1, 1])


@pytest.mark.parametrize("r", [3, 4, 7, 50])
@pytest.mark.parametrize("n", [1, 2, 5, 9, 40])
def test_pairs_are_those_within_the_window(n: int, r: int) -> None:
    before, after = formulas.window(r)
    pairs = sum(-before <= key - query <= after for query in range(n) for key in range(n))
    assert formulas.attended_pairs(n, r) == pairs
    assert formulas.RESTRICTED_ATTENTION.multiply_adds(Size(n, 10, 3, r)) == 2 * pairs * 10


def flops(kind: LayerType, size: Size) -> int:
    layer = build_layer(kind, size, 1, CPU)
    with FlopCounterMode(display=False) as counter:
        layer.forward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("size", [Size(12, 8, 3, 4), Size(20, 6, 5, 3)])
def test_multiply_adds_are_those_that_pytorch_computes(size: Size) -> None:
    for kind in (formulas.SELF_ATTENTION, formulas.PROJECTED_ATTENTION, formulas.RECURRENT):
        assert 2 * kind.multiply_adds(size) == flops(kind, size)
    padded = size._replace(n=size.n + size.k - 1)  # nn.Conv1d also computes outputs beyond the end
    assert 2 * formulas.CONVOLUTIONAL.multiply_adds(padded) == flops(formulas.CONVOLUTIONAL, size)


def test_restricted_attention_costs_twice_its_pairs_not_the_whole_matrix() -> None:
    size = Size(64, 8, 3, 4)
    computed = flops(formulas.RESTRICTED_ATTENTION, size)
    assert computed == 2 * 2 * 64 * (2 * 4 - 1) * 8
    assert flops(formulas.RESTRICTED_ATTENTION, size._replace(n=128)) == 2 * computed
    assert computed < 0.15 * flops(formulas.SELF_ATTENTION, size)
