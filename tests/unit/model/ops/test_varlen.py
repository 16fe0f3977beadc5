"""Attention by PyTorch's variable-length operator, over a plain kernel on a CPU: lengths, masks, widths, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models.flash import flash_attention_on_cpu
from support.models.packed import VOCAB, draw_pairs, pack, tiny_config
from torch import Tensor

from dstransformer.config import ModelConfig
from dstransformer.model import Transformer
from dstransformer.model.loss import Objective
from dstransformer.model.ops import Backend, varlen

#: As many tokens as rows, because a GPU has no filler.
LENGTHS = ((5, 7), (1, 3), (9, 2), (1, 4))

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "narrow values": {"d_k": 16, "d_v": 8},
    "narrow keys": {"d_k": 4, "d_v": 16},
    "no multiple of 8": {"d_k": 5, "d_v": 3},
    "one head": {"num_heads": 1, "d_k": 32, "d_v": 32},
    "pre-norm": {"norm": "pre"},
    "biases": {"attention_bias": True},
}

PRESETS = ["base", "big", "deep", "parser_wsj", "toy"]


def gradients(config: ModelConfig, backend: Backend) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the pairs in fp64, and its gradients by name."""
    sources, targets = zip(*draw_pairs(LENGTHS), strict=True)
    (src, src_packing), (tgt, tgt_packing) = pack(list(sources)), pack(list(targets))
    assert (src_packing.rows, tgt_packing.rows) == (src_packing.tokens, tgt_packing.tokens)
    torch.manual_seed(1)
    model = Transformer(config, VOCAB, backend).double()
    for parameter in model.parameters():
        parameter.data.add_(0.02 * torch.randn_like(parameter))  # biases too
    loss = Objective(model, 0.1)(src, src_packing, tgt, tgt.roll(-1), tgt_packing).loss
    loss.backward()
    return loss.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def assert_equal(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Assert that both backends compute the same; return the maximum lengths of each call of the operator."""
    loss, expected = gradients(config, "padded")
    monkeypatch.setattr(varlen, "_is_available", lambda *_: True)
    with flash_attention_on_cpu() as calls:
        found_loss, found = gradients(config, "varlen")
    torch.testing.assert_close(found_loss, loss, rtol=1e-6, atol=0.0)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert (gradient - expected[name]).norm() <= 1e-6 * expected[name].norm(), name
    return calls


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_loss_and_gradients_equal_the_padded_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = assert_equal(tiny_config(**ARCHITECTURES[name]), monkeypatch)
    assert sorted(calls) == sorted([(9, 9), (7, 7), (7, 9)] * 2)


def test_heads_that_are_too_wide_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert assert_equal(tiny_config(d_k=264, num_layers=1), monkeypatch) == []


def test_the_public_function_computes_the_same_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert varlen.HAS_OPERATOR
    monkeypatch.setattr(varlen, "HAS_OPERATOR", False)
    varlen._warn_of_public_function.cache_clear()
    assert len(assert_equal(tiny_config(), monkeypatch)) == 6
    (warning,) = caplog.messages
    assert f"PyTorch {torch.__version__} lacks the flash attention of 2.11" in warning
