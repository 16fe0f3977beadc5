from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from support.models.packed import VOCAB, draw_pairs, model_logits, model_loss, tiny_config
from torch import Tensor
from torch.nn import functional as F

from dstransformer.model import Transformer, ops
from dstransformer.model import loss as loss_module
from dstransformer.model.loss import smoothed_cross_entropy
from dstransformer.model.ops import cpu

TOKENS, WIDTH, ROWS = 23, 32, 31


@pytest.fixture(params=[1 << 23, 5 * ROWS, 1], ids=["one chunk", "five tokens", "one token"])
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", request.param)


def draw() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator).requires_grad_()
    weight = torch.randn(ROWS, WIDTH, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(0, ROWS, (TOKENS,), generator=generator)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("own_products", [False, True])
def test_loss_and_gradients_equal_pytorchs_cross_entropy(
    epsilon: float, own_products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "is_faster_than_mkl", lambda: own_products)
    monkeypatch.setattr(cpu, "MIN_OUTPUTS_PER_THREAD", 1)
    hidden, weight, targets = draw()
    expected = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum", label_smoothing=epsilon)
    (expected * 0.37).backward()
    gradients = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    loss, nll, *_ = smoothed_cross_entropy(hidden, weight, targets, epsilon)
    (loss * 0.37).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, F.cross_entropy(hidden @ weight.t(), targets, reduction="sum"))
    torch.testing.assert_close((hidden.grad, weight.grad), gradients)
    assert not nll.requires_grad


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("kernels", ["0", "1"])
def test_an_output_bias_is_a_further_column_of_the_matrix(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    hidden, weight, targets = draw()
    bias = torch.linspace(-2, 3, ROWS).requires_grad_()
    wanted = (hidden, weight, bias)
    logits = hidden @ weight.t() + bias
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    gradients = torch.autograd.grad(0.37 * expected, wanted, retain_graph=True)
    loss, nll, *_ = smoothed_cross_entropy(hidden, weight, targets, 0.1, bias)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, F.cross_entropy(logits, targets, reduction="sum"))
    torch.testing.assert_close(torch.autograd.grad(0.37 * loss, wanted), gradients)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = [tensor.detach().to(dtype).requires_grad_() for tensor in wanted]
        half, *_ = smoothed_cross_entropy(rounded[0], rounded[1], targets, 0.1, rounded[2])
        for found, exact in zip(torch.autograd.grad(0.37 * half, rounded), gradients, strict=True):
            assert (found.float() - exact).norm() < 0.05 * exact.norm()


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("kernels", ["0", "1"])
def test_rows_beyond_the_targets_are_ignored(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    hidden, weight, targets = draw()
    expected = (
        *smoothed_cross_entropy(hidden, weight, targets, 0.1),
        *torch.autograd.grad(smoothed_cross_entropy(hidden, weight, targets, 0.1)[0], (hidden, weight)),
    )
    filled = F.pad(hidden.detach(), (0, 0, 0, 9), value=3.0).requires_grad_()
    loss, nll, *_ = smoothed_cross_entropy(filled, weight, targets, 0.1)
    of_hidden, of_weight = torch.autograd.grad(loss, (filled, weight))
    torch.testing.assert_close((loss, nll, of_hidden[:TOKENS], of_weight), expected)
    assert not of_hidden[TOKENS:].any()


def test_the_smoothed_target_has_a_share_on_rows_that_are_no_pieces() -> None:
    torch.manual_seed(1)
    model = Transformer(tiny_config(vocab_multiple=64), VOCAB)
    pairs = draw_pairs()
    logits, targets = model_logits(model, pairs), torch.cat([tgt for _, tgt in pairs]).roll(-1)
    assert logits.shape[1] == 64 > VOCAB
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(model_loss(model), expected)


def test_perfect_prediction_has_the_entropy_of_the_smoothed_target() -> None:
    epsilon = 0.1
    target = torch.full((1, ROWS), epsilon / ROWS)
    target[0, 4] += 1 - epsilon
    hidden = target.log()
    loss, *_ = smoothed_cross_entropy(hidden, torch.eye(ROWS), torch.tensor([4]), epsilon)
    torch.testing.assert_close(loss, -(target * target.log()).sum())


def test_an_fp16_gradient_survives_a_loss_scale_beyond_the_fp16_range() -> None:
    hidden, weight, targets = (t.detach().half() if t.is_floating_point() else t.detach() for t in draw())
    hidden.requires_grad_()
    loss, *_ = smoothed_cross_entropy(hidden, weight, targets, 0.1)
    (loss * 1e-5 * 2.0**17).backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_small_gradients_of_fp16_logits_are_not_lost() -> None:
    """The probability of each wrong piece is 1e-8, a sixth of the smallest fp16 number."""
    hidden, weight = torch.ones(1, WIDTH, dtype=torch.float16), torch.zeros(ROWS, WIDTH, dtype=torch.float16)
    weight[0] = 18.4 / WIDTH
    weight.requires_grad_()
    loss, *_ = smoothed_cross_entropy(hidden, weight, torch.tensor([0]), 0.0)
    (loss * 2.0**15).backward()
    assert weight.grad is not None
    expected = torch.full((ROWS - 1, WIDTH), 2.0**15 * 1.02e-8, dtype=torch.float16)
    torch.testing.assert_close(weight.grad[1:], expected, rtol=0.05, atol=0.0)


def test_a_frequent_piece_does_not_overflow_the_gradient_of_fp16_weights() -> None:
    hidden, weight = torch.full((300, WIDTH), 3.0), torch.zeros(ROWS, WIDTH)
    targets = torch.zeros(300, dtype=torch.long)
    expected, actual = (
        torch.autograd.grad(smoothed_cross_entropy(hidden.to(dtype), w, targets, 0.1)[0], w)[0]
        for dtype in (torch.float32, torch.float16)
        for w in (weight.to(dtype).requires_grad_(),)
    )
    torch.testing.assert_close(actual.float(), expected, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_only_one_chunk_of_logits_is_held_in_memory(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", 10 * ROWS)
    prepare_linear, held = ops.prepare_linear, []
    laid_out = []

    def watched(weight: Tensor, bias: Tensor | None = None, *, repeated: bool) -> Callable[[Tensor], Tensor]:
        multiply = prepare_linear(weight, bias, repeated=repeated)
        laid_out.append(repeated)

        def watch(x: Tensor) -> Tensor:
            assert all(logits() is None for logits in held)
            logits = multiply(x)
            held.append(weakref.ref(logits))
            return logits

        return watch if weight.shape[1] == WIDTH else multiply  # the other is for the gradient of the logits

    monkeypatch.setattr(ops, "prepare_linear", watched)
    hidden, weight, targets = draw()
    smoothed_cross_entropy(hidden, weight, targets, 0.1)
    assert laid_out == [True, True]
    assert len(held) == 5
