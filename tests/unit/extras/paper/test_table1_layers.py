"""The layers of Table 1: their formulas against graphs and against what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch.autograd.graph import Node
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dstransformer.extras.paper import table1_layers as layers
from dstransformer.extras.paper.table1 import fit_power_law, measure
from dstransformer.extras.paper.table1_layers import Layer, LayerType, Size, attention, restricted_attention, window

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
    before, after = layers.window(r)
    assert before + after + 1 == r
    found = layers_until_connected(n, lambda _, high: range(high - before, high + after + 1), all_pairs(n))
    assert layers.restricted_path_length(n, r) == found


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("n", [2, 3, 8, 9, 10, 25, 26, 28])
def test_convolutional_path_lengths_are_those_of_their_graphs(n: int, k: int) -> None:
    ends = [(0, n - 1)]
    dilated = layers_until_connected(n, dilated_sources(k), ends)
    contiguous = layers_until_connected(n, lambda _, high: range(high, high - k, -1), ends)
    assert layers.dilated_path_length(n, k) == dilated
    assert layers.contiguous_path_length(n, k) == contiguous


def test_counts_grow_with_the_orders_of_the_paper() -> None:
    long, longer = Size(1000, 8, 3, 16), Size(2000, 8, 3, 16)
    growth = {
        kind.name: (
            kind.sequential_operations(longer) / kind.sequential_operations(long),
            kind.path_length(longer) / kind.path_length(long),
        )
        for kind in layers.LAYER_TYPES
    }
    assert growth["self-attention"] == growth["self-attention with projections"] == (1, 1)
    assert growth["recurrent"] == (2, 2)
    assert growth["convolutional"] == (1, 1)  # 7 layers each: between 3^6 and 3^7
    assert growth["restricted self-attention"] == (1, pytest.approx(2, rel=0.02))


def longest_chain(node: Node | None) -> int:
    """The operations on the longest path through the graph that PyTorch recorded."""
    return 0 if node is None else 1 + max((longest_chain(below) for below, _ in node.next_functions), default=0)


@pytest.mark.parametrize("kind", layers.LAYER_TYPES, ids=lambda kind: kind.name)
def test_sequential_operations_grow_like_the_longest_chain(kind: LayerType) -> None:
    sizes = [Size(n, 4, 3, 3) for n in (3, 4, 6)]
    counted = [kind.sequential_operations(size) for size in sizes]
    chains = [longest_chain(kind.build(size, 1, CPU).forward().grad_fn) for size in sizes]
    step = chains[1] - chains[0]  # operations of one position that wait for the previous one
    assert (step > 0) == (kind is layers.RECURRENT)
    assert chains[2] - chains[1] == 2 * step
    assert counted == ([3, 4, 6] if step else [1, 1, 1])


@pytest.mark.parametrize("r", [3, 4, 7, 50])
@pytest.mark.parametrize("n", [1, 2, 5, 9, 40])
def test_pairs_are_those_within_the_window(n: int, r: int) -> None:
    before, after = layers.window(r)
    pairs = sum(-before <= key - query <= after for query in range(n) for key in range(n))
    assert layers.attended_pairs(n, r) == pairs
    assert layers.RESTRICTED_ATTENTION.multiply_adds(Size(n, 10, 3, r)) == 2 * pairs * 10


def flops(kind: LayerType, size: Size) -> int:
    layer = kind.build(size, 1, CPU)
    with FlopCounterMode(display=False) as counter:
        layer.forward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("size", [Size(12, 8, 3, 4), Size(20, 6, 5, 3)])
def test_multiply_adds_are_those_that_pytorch_computes(size: Size) -> None:
    for kind in (layers.SELF_ATTENTION, layers.PROJECTED_ATTENTION, layers.RECURRENT):
        assert 2 * kind.multiply_adds(size) == flops(kind, size)
    padded = size._replace(n=size.n + size.k - 1)  # nn.Conv1d also computes outputs beyond the end
    assert 2 * layers.CONVOLUTIONAL.multiply_adds(padded) == flops(layers.CONVOLUTIONAL, size)


def test_restricted_attention_costs_twice_its_pairs_not_the_whole_matrix() -> None:
    size = Size(64, 8, 3, 4)
    computed = flops(layers.RESTRICTED_ATTENTION, size)
    assert computed == 2 * 2 * 64 * (2 * 4 - 1) * 8
    assert flops(layers.RESTRICTED_ATTENTION, size._replace(n=128)) == 2 * computed
    assert computed < 0.15 * flops(layers.SELF_ATTENTION, size)


def queries_keys_values(n: int, d: int = 6, batch: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(n)
    return [torch.randn(batch, n, d, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def test_attention_is_equation_1() -> None:
    q, k, v = queries_keys_values(9)
    torch.testing.assert_close(attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("r", [3, 4, 8, 33])
@pytest.mark.parametrize("n", [1, 5, 31, 64])
def test_restricted_attention_is_full_attention_with_a_mask(n: int, r: int) -> None:
    inputs = queries_keys_values(n)
    before, after = window(r)
    offset = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # key minus query
    mask = (offset >= -before) & (offset <= after)
    banded = restricted_attention(*inputs, r)
    masked = F.scaled_dot_product_attention(*inputs, attn_mask=mask)
    torch.testing.assert_close(banded, masked)
    towards = torch.randn_like(banded)
    for one, other in zip(
        torch.autograd.grad(banded, inputs, towards), torch.autograd.grad(masked, inputs, towards), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", layers.LAYER_TYPES, ids=lambda kind: kind.name)
def test_every_leaf_of_a_layer_gets_a_gradient(kind: LayerType) -> None:
    layer = kind.build(Size(10, 4, 3, 4), 2, CPU)
    out = layer.forward()
    assert out.shape == layer.leaves[0].shape
    out.backward(torch.ones_like(out))
    assert all(leaf.grad is not None for leaf in layer.leaves)
    assert measure(layer, 1, CPU).peak_bytes > 0


@pytest.mark.parametrize(("kind", "axis", "reach"), [(layers.RECURRENT, 1, 7), (layers.CONVOLUTIONAL, 2, 2)])
def test_recurrence_and_convolution_only_look_back(kind: LayerType, axis: int, reach: int) -> None:
    layer = kind.build(Size(8, 4, 3, 4), 1, CPU)
    x = layer.leaves[0]
    last = layer.forward().select(axis, 7)
    (gradient,) = torch.autograd.grad(last.sum(), x)
    others = tuple({0, 1, 2} - {axis})
    depends = gradient.abs().sum(others) > 0
    assert depends.tolist() == [7 - position <= reach for position in range(8)]


def test_peak_memory_matches_the_allocations() -> None:
    x = torch.randn(1000, 1000, requires_grad=True)
    cost = measure(Layer(lambda: x.exp().exp(), (x,)), 1, CPU)
    # Two results, and in the backward pass two gradients, the first of which can be freed before its result.
    assert 3 * x.nbytes <= cost.peak_bytes <= 4 * x.nbytes
    assert cost.forward_seconds > 0
    assert cost.backward_seconds > 0


@pytest.mark.parametrize(("a", "b"), [(2, 1), (1, 2), (1.5, 0.25)])
def test_the_fit_finds_known_exponents(a: float, b: float) -> None:
    sizes = [(n, d) for n in (64, 128, 256, 512) for d in (32, 64, 128)]
    law = fit_power_law(sizes, [3e-9 * n**a * d**b for n, d in sizes])
    assert (law.factor, law.n_exponent, law.d_exponent) == pytest.approx((3e-9, a, b))
    assert law.residual == pytest.approx(0, abs=1e-9)
    assert law.value(100, 10) == pytest.approx(3e-9 * 100**a * 10**b)


def test_the_residual_is_the_relative_deviation() -> None:
    sizes = [(n, d) for n in (64, 128, 256, 512) for d in (32, 64, 128, 256)]
    noisy = [n**2 * d * (1.1 if (i + j) % 2 else 1 / 1.1) for i, n in enumerate((64, 128, 256, 512))
             for j, d in enumerate((32, 64, 128, 256))]  # fmt: skip
    law = fit_power_law(sizes, noisy)
    assert law.n_exponent == pytest.approx(2, abs=0.05)
    assert law.d_exponent == pytest.approx(1, abs=0.05)
    assert law.residual == pytest.approx(0.1, abs=0.02)
