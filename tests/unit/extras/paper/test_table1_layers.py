from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dstransformer.extras.paper.table1 import fit_power_law, measure
from dstransformer.extras.paper.table1_formulas import CONVOLUTIONAL, LAYER_TYPES, RECURRENT, LayerType, Size, window
from dstransformer.extras.paper.table1_layers import Layer, attention, build_layer, restricted_attention

CPU = torch.device("cpu")


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


@pytest.mark.parametrize("kind", LAYER_TYPES, ids=lambda kind: kind.name)
def test_every_leaf_of_a_layer_gets_a_gradient(kind: LayerType) -> None:
    layer = build_layer(kind, Size(10, 4, 3, 4), 2, CPU)
    out = layer.forward()
    assert out.shape == layer.leaves[0].shape
    out.backward(torch.ones_like(out))
    assert all(leaf.grad is not None for leaf in layer.leaves)
    assert measure(layer, 1, CPU).peak_bytes > 0


@pytest.mark.parametrize(("kind", "axis", "reach"), [(RECURRENT, 1, 7), (CONVOLUTIONAL, 2, 2)])
def test_recurrence_and_convolution_only_look_back(kind: LayerType, axis: int, reach: int) -> None:
    layer = build_layer(kind, Size(8, 4, 3, 4), 1, CPU)
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
