"""Matrix products with weights on a CPU, and the filler that limits their sizes to a few."""

from __future__ import annotations

import math

import pytest
import torch
from support.models.numerics import PRECISIONS, assert_near, draw, exact
from support.models.packed import VOCAB, draw_pairs, model_loss, pack, tiny_config
from torch import Tensor
from torch.nn import functional as F

from dstransformer.config import Activation
from dstransformer.data.packing import Packing
from dstransformer.model import Transformer, ops
from dstransformer.model.loss import Objective
from dstransformer.model.ops import cpu, library, reference


@pytest.fixture(autouse=True)
def _compiled() -> None:
    assert library.kernels() is not None


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("activation", [None, *reference.ACTIVATIONS])
@pytest.mark.parametrize("width", [48, 20])
def test_linear(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    tolerance: float,
    onednn: bool,
    biased: bool,
    activation: Activation | None,
    width: int,
) -> None:
    if not onednn:
        monkeypatch.setattr(cpu, "_has_onednn", lambda _: False)
    tensors = [draw(37, 32, dtype=dtype), draw(width, 32, dtype=dtype), *([draw(width, dtype=dtype)] * biased)]
    out = ops.linear(tensors[0], tensors[1], tensors[2] if biased else None, activation=activation)
    grad = torch.randn_like(out)
    out.backward(grad)
    wide = [exact(tensor) for tensor in tensors]
    expected = F.linear(*wide)
    expected = expected if activation is None else reference.ACTIVATIONS[activation](expected)
    assert_near(out, expected, tolerance)
    # Rounding may decide the sign of an element near 0, so the rounded product gives the mask.
    (torch.where(out > 0, F.linear(*wide), 0.0) if activation == "relu" else expected).backward(grad.double())
    for tensor, wanted in zip(tensors, wide, strict=True):
        assert_near(tensor.grad, wanted.grad, tolerance)
    prepared = ops.prepare_linear(*(tensor.detach() for tensor in tensors[1:]), activation=activation)
    assert_near(prepared(tensors[0].detach()), expected, tolerance)


@pytest.mark.parametrize("rows", [1, 15, 256, 300])
@pytest.mark.parametrize(("outs", "ins"), [(8, 32), (3, 64), (150, 288)])
def test_gradient_of_weights(monkeypatch: pytest.MonkeyPatch, rows: int, outs: int, ins: int) -> None:
    monkeypatch.setattr(cpu, "is_faster_than_mkl", lambda: True)
    monkeypatch.setattr(cpu, "MIN_OUTPUTS_PER_THREAD", 1)
    grad, x = torch.randn(rows, outs), torch.randn(ins, rows).t()
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        results.append(ops.weight_gradient(grad, x))
    assert_near(results[0], grad.double().t() @ x.double(), 1e-5)
    assert torch.equal(*results)


def test_linear_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = (draw(*shape, dtype=torch.float32) for shape in ((37, 32), (48, 32), (48,)))

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(ops.linear(x, weight, bias, activation="relu").square().sum(), (x, weight, bias))

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = gradients()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.testing.assert_close(gradients(), alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 20])
@pytest.mark.parametrize("onednn", [True, False])
def test_nan_passes_relu(monkeypatch: pytest.MonkeyPatch, onednn: bool, width: int, dtype: torch.dtype) -> None:
    if not onednn:
        monkeypatch.setattr(cpu, "_has_onednn", lambda _: False)
    x, weight = draw(8, 16, dtype=dtype), draw(width, 16, dtype=dtype)
    broken = x.detach().clone()
    broken[3, 5] = math.nan
    broken.requires_grad_()
    out = ops.linear(broken, weight, None, activation="relu")
    assert out[3].isnan().all()
    assert out.isnan().sum() == width
    out.backward(torch.ones_like(out))
    assert broken.grad is not None
    torch.testing.assert_close(broken.grad[3], weight.sum(dim=0))


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("attention_dropout", [0.0, 0.2])
def test_filler_changes_nothing(kernels: str, attention_dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    model = Transformer(tiny_config(attention_dropout=attention_dropout), VOCAB)
    assert any(packing.rows > packing.tokens for _, packing in map(pack, zip(*draw_pairs(), strict=True)))

    def compute() -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        loss = model_loss(model)
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    filled = compute()
    monkeypatch.setattr(Packing, "rows", property(lambda packing: packing.tokens))
    torch.testing.assert_close(compute(), filled)


@pytest.mark.slow
def test_products_have_few_distinct_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN caches code for each number of rows for the life of the process."""
    if not cpu._has_onednn(torch.float32):
        pytest.skip("this PyTorch has no oneDNN products")
    met, multiply = set(), cpu._onednn_linear

    def record(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        met.add(x.shape[0])
        return multiply(x, weight, bias)

    monkeypatch.setattr(cpu, "_onednn_linear", record)
    model = Transformer(tiny_config(), VOCAB)
    for longer in range(64):
        pairs = draw_pairs((*[(50, 50)] * 19, (50 + longer, 113 - longer)))
        src, src_packing = pack([src for src, _ in pairs])
        tgt, tgt_packing = pack([tgt for _, tgt in pairs])
        Objective(model, 0.1)(src, src_packing, tgt, tgt, tgt_packing).loss.backward()
    assert 1 < len(met) < 12
