"""Mixed precision: weights in fp32, the computation in bf16 or fp16, gradients in fp32 again."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from support.models.packed import tiny_config
from torch import Tensor
from torch.nn import functional as F

from dstransformer.config import Activation
from dstransformer.data.packing import Packing
from dstransformer.model import Transformer, ops
from dstransformer.model.loss import Objective
from dstransformer.model.ops import RoundedWeights, reference

VOCAB = 40
HALVES = [torch.bfloat16, torch.float16]


def gradients(model: Transformer, scale: float = 1.0) -> dict[str, Tensor]:
    """Of the loss of a batch without dropout."""
    torch.manual_seed(1)
    packing = Packing.from_lengths([5, 9, 12])
    ids = torch.randint(4, VOCAB, (packing.tokens,))
    model.zero_grad()
    (Objective(model, 0.1)(ids, packing, ids, ids, packing).loss * scale).backward()
    return {name: weight.grad.clone() / scale for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("dtype", HALVES)
def test_its_gradients_are_fp32_and_as_close_as_those_of_rounded_weights(dtype: torch.dtype, norm: str) -> None:
    torch.manual_seed(3)
    config = tiny_config(norm=norm, positions="learned", max_positions=20, tie_embeddings="none")
    exact, mixed, rounded = (Transformer(config, VOCAB, dtype=given) for given in (None, dtype, None))
    for model in (mixed, rounded):
        model.load_state_dict(exact.state_dict())
    rounded.to(dtype)
    expected = gradients(exact)

    def distance(found: dict[str, Tensor]) -> float:
        assert found.keys() == expected.keys() == dict(exact.named_parameters()).keys()
        apart = sum(float((found[name].float() - expected[name]).square().sum()) for name in expected)
        return float((apart / sum(float(gradient.square().sum()) for gradient in expected.values())) ** 0.5)

    found = gradients(mixed, 64.0)
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    assert {weight.dtype for weight in mixed.parameters()} == {torch.float32}
    found_apart, rounded_apart = distance(found), distance(gradients(rounded, 64.0))
    assert found_apart < 3 * rounded_apart
    assert found_apart < (0.1 if dtype == torch.bfloat16 else 0.02)


@pytest.mark.parametrize("dtype", HALVES)
def test_small_gradients_of_many_batches_are_not_lost(dtype: torch.dtype) -> None:
    """In bf16, 1 + 0.002 is 1: a sum in half precision would stay where it is."""
    weight = torch.nn.Parameter(torch.ones(1, 1))
    for value in [1.0] + 500 * [0.002]:
        reference.linear(torch.full((1, 1), value, dtype=dtype), weight, None).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize(("biased", "activation"), [(False, None), (True, None), (True, "relu"), (True, "gelu")])
@pytest.mark.parametrize("dtype", HALVES)
def test_the_product_for_a_gpu_has_the_gradients_of_pytorch(
    dtype: torch.dtype, biased: bool, activation: Activation | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dstransformer.model.ops.dispatch.can_compute", lambda *_: False)
    torch.manual_seed(5)
    x = torch.randn(7, 6, dtype=dtype, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(4, 6))
    bias = torch.nn.Parameter(torch.randn(4)) if biased else None
    inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
    upstream = torch.randn(7, 4, dtype=dtype)

    def through(product: Tensor) -> list[Tensor]:
        return [product, *torch.autograd.grad(product, inputs, upstream)]

    found = through(ops.linear(x, weight, bias, activation=activation))
    halved = None if bias is None else bias.to(dtype)
    product = F.linear(x, weight.to(dtype), halved)
    expected = through(product if activation is None else reference.ACTIVATIONS[activation](product))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def mixed_model(dtype: torch.dtype, norm: str, tied: str) -> Transformer:
    torch.manual_seed(3)
    changes = {"activation": "swish", "output_bias": True} if norm == "pre" else {}
    config = tiny_config(
        norm=norm, positions="learned", max_positions=20, tie_embeddings=tied, attention_bias=True, **changes
    )
    return Transformer(config, VOCAB, dtype=dtype)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize(("norm", "tied"), [("post", "all"), ("pre", "none")])
@pytest.mark.parametrize("dtype", HALVES)
def test_weights_rounded_once_compute_the_same(
    dtype: torch.dtype, norm: str, tied: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with the kernels of a CPU and as on a GPU, and after the weights changed."""
    if not kernels:
        monkeypatch.setattr("dstransformer.model.ops.dispatch.can_compute", lambda *_: False)
    model = mixed_model(dtype, norm, tied)
    once = RoundedWeights(model.parameters(), dtype)
    for _ in range(2):
        expected = gradients(model)
        with once.in_use():
            found = gradients(model)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        with torch.no_grad():
            for weight in model.parameters():
                weight.data.mul_(1.1)  # does not count as a change of the parameter


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_finds_the_rounded_weights_after_their_block(fails: bool) -> None:
    model = mixed_model(torch.bfloat16, "post", "all")
    once = RoundedWeights(model.parameters(), torch.bfloat16)
    with suppress(RuntimeError), once.in_use():
        gradients(model)
        if fails:
            raise RuntimeError
    found = mixed_model(torch.bfloat16, "post", "all")
    with torch.no_grad():
        for weight, other in zip(model.parameters(), found.parameters(), strict=True):
            weight.data.mul_(0.5)
            other.data.mul_(0.5)
    expected = gradients(found)
    assert all(torch.equal(gradient, expected[name]) for name, gradient in gradients(model).items())
