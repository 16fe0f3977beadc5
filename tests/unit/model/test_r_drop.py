"""R-Drop (Liang et al., 2021): the formula, its gradient, and the two passes of the model."""

from __future__ import annotations

import pytest
import torch
from support.models.packed import VOCAB, draw_pairs, pack, tiny_config
from torch import Tensor
from torch.nn import functional as F

from dstransformer.data.packing import Packing
from dstransformer.model import Transformer
from dstransformer.model import loss as loss_module
from dstransformer.model.loss import Objective, r_drop_cross_entropy, smoothed_cross_entropy

TOKENS, WIDTH, ROWS = 150, 32, 40
ALPHA, EPSILON = 5.0, 0.1


def draw(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(2 * TOKENS + 5, WIDTH, generator=generator).to(dtype).requires_grad_()
    weight = (0.3 * torch.randn(ROWS, WIDTH, generator=generator)).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, ROWS, (TOKENS,), generator=generator)


def formula(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Equations 2 to 4 of Liang et al., halved, by PyTorch's own functions."""
    first, second = hidden[:TOKENS] @ weight.t(), hidden[TOKENS : 2 * TOKENS] @ weight.t()
    entropies = [F.cross_entropy(z, targets, reduction="sum", label_smoothing=EPSILON) for z in (first, second)]
    log_p, log_q = first.log_softmax(-1), second.log_softmax(-1)
    kl = F.kl_div(log_q, log_p, reduction="sum", log_target=True) + F.kl_div(
        log_p, log_q, reduction="sum", log_target=True
    )
    return 0.5 * (entropies[0] + entropies[1] + ALPHA * 0.5 * kl)


@pytest.mark.parametrize("logits", [1 << 23, 8 * 64 * ROWS], ids=["one chunk", "chunks"])
def test_loss_and_gradients_equal_the_formula(logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", logits)
    hidden, weight, targets = draw()
    expected = formula(hidden, weight, targets)
    gradients = torch.autograd.grad(0.37 * expected, (hidden, weight))
    loss, nll, *_ = r_drop_cross_entropy(hidden, weight, targets, EPSILON, ALPHA)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(0.37 * loss, (hidden, weight)), gradients)
    means = [F.cross_entropy(hidden[at : at + TOKENS] @ weight.t(), targets, reduction="sum") for at in (0, TOKENS)]
    torch.testing.assert_close(nll, (means[0] + means[1]) / 2)
    assert not nll.requires_grad


@pytest.mark.parametrize("logits", [1 << 23, 8 * 64 * ROWS], ids=["one chunk", "chunks"])
def test_an_output_bias_is_a_further_column_of_the_matrix(logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", logits)
    hidden, weight, targets = draw()
    bias = torch.linspace(-2, 3, ROWS).requires_grad_()
    wanted = (hidden, weight, bias)
    expected = formula(F.pad(hidden, (0, 1), value=1.0), torch.cat((weight, bias[:, None]), dim=1), targets)
    gradients = torch.autograd.grad(0.37 * expected, wanted)
    loss, *_ = r_drop_cross_entropy(hidden, weight, targets, EPSILON, ALPHA, bias)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(0.37 * loss, wanted), gradients)


def test_fp16_does_not_overflow_with_a_large_divergence() -> None:
    hidden, weight, targets = draw(torch.float16)
    loss, *_ = r_drop_cross_entropy(hidden, weight, targets, EPSILON, 100.0)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (hidden, weight)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_the_formula(dtype: torch.dtype) -> None:
    hidden, weight, targets = draw(dtype)
    exact = [tensor.detach().float().requires_grad_() for tensor in (hidden, weight)]
    expected = formula(*exact, targets)
    gradients = torch.autograd.grad(expected, exact)
    loss, *_ = r_drop_cross_entropy(hidden, weight, targets, EPSILON, ALPHA)
    torch.testing.assert_close(loss, expected, rtol=0.02, atol=0.0)
    for actual, wanted in zip(torch.autograd.grad(loss, (hidden, weight)), gradients, strict=True):
        assert (actual.float() - wanted).norm() < 0.03 * wanted.norm()


def test_two_equal_passes_have_the_loss_and_gradients_of_one() -> None:
    hidden, weight, targets = draw()
    single = hidden.detach()[:TOKENS].requires_grad_()
    expected = smoothed_cross_entropy(single, weight, targets, EPSILON)
    twice = torch.cat((single, single))
    actual = r_drop_cross_entropy(twice, weight, targets, EPSILON, ALPHA)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        torch.autograd.grad(actual[0], (single, weight)), torch.autograd.grad(expected[0], (single, weight))
    )


def test_twice_repeats_every_sentence_of_a_packing() -> None:
    packing = Packing.from_lengths([3, 1, 5])
    assert packing.twice().cu.tolist() == [0, 3, 4, 9, 12, 13, 18]
    assert (packing.twice().tokens, packing.twice().max_len) == (18, 5)
    assert packing.twice().positions.tolist() == 2 * packing.positions.tolist()


def test_a_model_in_training_makes_two_passes_with_different_dropout() -> None:
    sources, targets = zip(*draw_pairs(), strict=True)
    (src, src_packing), (tgt, tgt_packing) = pack(list(sources)), pack(list(targets))
    batch = (src, src_packing, tgt, tgt.roll(-1), tgt_packing)
    config = tiny_config(dropout=0.3)
    model = Transformer(config, VOCAB).eval()
    assert Objective(model, EPSILON, ALPHA)(*batch) == Objective(model, EPSILON)(*batch)
    without_dropout = Transformer(config.model_copy(update={"dropout": 0.0}), VOCAB)
    one, two = (Objective(without_dropout, EPSILON, alpha)(*batch).loss for alpha in (0.0, ALPHA))
    torch.testing.assert_close(two, one)  # without dropout the passes agree
    model.train()
    torch.manual_seed(1)
    dropped = Objective(model, EPSILON, ALPHA)(*batch).loss
    torch.manual_seed(1)
    without_kl = Objective(model, EPSILON, 1e-9)(*batch).loss
    assert dropped > 1.001 * without_kl
