"""The extracted attention weights are those that the model itself uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models.attention import random_model
from support.models.packed import VOCAB, draw_pairs, model_logits, tiny_config
from torch import Tensor

from dstransformer.model import Transformer, attention_weights
from dstransformer.model.attention_weights import AttentionWeights, record_projections, softmax_weights
from dstransformer.model.transformer import MultiHeadAttention, PackedAttention

SRC, TGT = draw_pairs(((9, 7),))[0]


def own_outputs(model: Transformer) -> dict[MultiHeadAttention, Tensor]:
    """The output of each attention of the model, without its filler rows."""
    outputs: dict[MultiHeadAttention, Tensor] = {}

    def store(part: MultiHeadAttention, _: object, options: dict[str, PackedAttention], output: Tensor) -> None:
        outputs[part] = output[: options["attend"].packing.tokens]

    parts = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    hooks = [part.register_forward_hook(store, with_kwargs=True) for part in parts]
    with torch.no_grad():
        model_logits(model, [(SRC, TGT)])
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.fixture(params=["compiled", "none"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the CPU kernels."""
    if request.param == "none":
        monkeypatch.setenv("DST_CPU_KERNELS", "0")
    return str(request.param)


@pytest.fixture(
    params=[
        {},
        {"norm": "pre"},
        {"d_k": 6, "d_v": 11},
        {"attention_bias": True, "norm": "pre", "d_v": 5},
        {"positions": "learned", "tie_embeddings": "none"},
    ],
    ids=str,
)
def changes(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def test_weights_times_values_reproduce_the_attention_output(changes: dict[str, Any], kernels: str) -> None:
    model = random_model(tiny_config(**changes), VOCAB)
    outputs = own_outputs(model)
    recorded = record_projections(model, SRC, TGT)
    assert len(outputs) == len(recorded) == 6
    for part, (q, k, v) in recorded.items():
        weights = softmax_weights(q, k, causal=part.shape.causal)
        with torch.no_grad():
            again = part.out((weights @ v).transpose(0, 1).flatten(1))
        torch.testing.assert_close(again, outputs[part], rtol=1e-4, atol=1e-5)
        assert weights.max() > 0.3  # far from uniform, so that a wrong scale or mask would show


@pytest.fixture(scope="module")
def model() -> Transformer:
    return random_model(tiny_config(), VOCAB)


@pytest.fixture(scope="module")
def weights(model: Transformer) -> AttentionWeights:
    return attention_weights(model, SRC, TGT)


def test_shapes_and_row_sums(weights: AttentionWeights) -> None:
    assert [tuple(part.shape) for part in weights] == [(2, 4, 9, 9), (2, 4, 7, 7), (2, 4, 7, 9)]
    for part in weights:
        assert part.dtype == torch.float32
        torch.testing.assert_close(part.sum(-1), torch.ones(part.shape[:-1]))


def test_the_decoder_does_not_attend_to_later_positions(weights: AttentionWeights) -> None:
    assert not weights.decoder.triu(1).any()
    assert weights.encoder.triu(1).any()


def test_layers_are_in_order(model: Transformer, weights: AttentionWeights) -> None:
    recorded = record_projections(model, SRC, TGT)
    for number, layer in enumerate(model.decoder):
        q, k, _ = recorded[layer.memory_attention]
        torch.testing.assert_close(weights.cross[number], softmax_weights(q, k, causal=False))


def test_softmax_weights_follow_the_formula() -> None:
    q, k = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    weights = softmax_weights(q, k, causal=True)
    for head in range(2):
        for i in range(3):
            scores = [float(torch.exp(q[head, i] @ k[head, j] / 4**0.5)) for j in range(i + 1)]
            expected = torch.tensor([*(score / sum(scores) for score in scores), *[0.0] * (2 - i)])
            torch.testing.assert_close(weights[head, i], expected)


def test_half_precision_gives_fp32_weights(weights: AttentionWeights) -> None:
    half = attention_weights(random_model(tiny_config(), VOCAB).bfloat16(), SRC, TGT)
    for part, exact in zip(half, weights, strict=True):
        assert part.dtype == torch.float32
        torch.testing.assert_close(part.sum(-1), torch.ones(part.shape[:-1]))
        assert float((part - exact).abs().mean()) < 0.02


def test_the_model_is_left_unchanged(model: Transformer) -> None:
    with torch.no_grad():
        before = model_logits(model, [(SRC, TGT)])
        attention_weights(model, SRC, TGT)
        torch.testing.assert_close(model_logits(model, [(SRC, TGT)]), before, rtol=0.0, atol=0.0)
