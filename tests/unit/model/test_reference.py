"""The reference implementation against the formulas of the paper, written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from dstransformer.config import Activation
from dstransformer.data.packing import Packing
from dstransformer.model.ops import reference
from dstransformer.model.ops.reference import HeadShape


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_equation_1_within_each_sentence(causal: bool) -> None:
    shape, lengths = HeadShape(2, 3, 5, causal), [4, 1, 6]
    packing = Packing.from_lengths(lengths)
    qkv = torch.randn(packing.tokens, 2 * (3 + 3 + 5), dtype=torch.float64)
    attended = reference.attention(qkv, None, packing, packing, shape, 0.0)[: packing.tokens]
    for sentence, found in zip(qkv.split(lengths), attended.split(lengths), strict=True):
        for head in range(2):
            q, k, v = (part.chunk(2, dim=1)[head] for part in sentence.split([6, 6, 10], dim=1))
            scores = q @ k.t() / math.sqrt(3)
            if causal:
                scores += torch.full_like(scores, -math.inf).triu(1)
            torch.testing.assert_close(found[:, 5 * head : 5 * head + 5], scores.softmax(1) @ v)


@pytest.mark.parametrize(("activation", "formula"), [
    ("relu", lambda x: max(0.0, x)),
    ("swish", lambda x: x / (1 + math.exp(-x))),
    ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
])  # fmt: skip
def test_activations_are_their_formulas(activation: Activation, formula: Callable[[float], float]) -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    expected = torch.tensor([formula(value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(reference.ACTIVATIONS[activation](x), expected)


def test_residual_norm_is_the_norm_of_the_sum() -> None:
    x, y, gain, bias = torch.randn(7, 12), torch.randn(7, 12), torch.randn(12), torch.randn(12)
    summed = x + y
    centred = summed - summed.mean(1, keepdim=True)
    expected = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt() * gain + bias
    torch.testing.assert_close(reference.residual_norm(x, y, gain, bias, 1e-6, 0.0), expected)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_cross_entropy_uses_the_smoothed_target(scale: float) -> None:
    logits, targets, epsilon = torch.randn(7, 9), torch.randint(0, 9, (5,)), 0.1
    smoothed = torch.full((5, 9), epsilon / 9)
    smoothed[range(5), targets] += 1 - epsilon
    p = logits[:5].softmax(1)
    loss, nll, grad = reference.cross_entropy(logits, targets, epsilon, scale)
    torch.testing.assert_close(loss, -(smoothed * p.log()).sum())
    torch.testing.assert_close(nll, -p.log()[range(5), targets].sum())
    assert grad is not None
    torch.testing.assert_close(grad[:5], scale * (p - smoothed))
    assert not grad[5:].any()
