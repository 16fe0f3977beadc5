"""The model against PyTorch's own Transformer, which shares no code with it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.models.packed import VOCAB, draw_pairs, model_logits, pack, tiny_config
from torch import Tensor, nn

from dstransformer.model import Transformer
from dstransformer.model.incremental import IncrementalDecoder

#: ``x sigmoid(x)``, and ``x Phi(x)`` with the normal distribution function.
ACTIVATIONS: dict[str, Any] = {
    "relu": torch.relu,
    "swish": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
}


def copy_into_reference(model: Transformer, reference: nn.Transformer) -> None:
    def attention(ours: Any, theirs: nn.MultiheadAttention) -> None:
        fused = torch.cat([ours.q.weight, ours.kv.weight]) if ours.over_memory else ours.qkv.weight
        theirs.in_proj_weight.copy_(fused)
        theirs.out_proj.weight.copy_(ours.out.weight)
        if ours.out.bias is not None:
            bias = torch.cat([ours.q.bias, ours.kv.bias]) if ours.over_memory else ours.qkv.bias
            theirs.in_proj_bias.copy_(bias)
            theirs.out_proj.bias.copy_(ours.out.bias)
        else:
            theirs.in_proj_bias.zero_()
            theirs.out_proj.bias.zero_()

    def norm(ours: nn.LayerNorm, theirs: nn.LayerNorm) -> None:
        theirs.load_state_dict(ours.state_dict())

    with torch.no_grad():
        for ours, theirs in zip(model.encoder, reference.encoder.layers, strict=True):
            attention(ours.self_attention, theirs.self_attn)
            theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
            theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
            norm(ours.self_attention_residual.norm, theirs.norm1)
            norm(ours.feed_forward_residual.norm, theirs.norm2)
        for ours, theirs in zip(model.decoder, reference.decoder.layers, strict=True):
            attention(ours.self_attention, theirs.self_attn)
            attention(ours.memory_attention, theirs.multihead_attn)
            theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
            theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
            norm(ours.self_attention_residual.norm, theirs.norm1)
            norm(ours.memory_attention_residual.norm, theirs.norm2)
            norm(ours.feed_forward_residual.norm, theirs.norm3)
        if model.encoder_norm is not None:
            norm(model.encoder_norm, reference.encoder.norm)
            norm(model.decoder_norm, reference.decoder.norm)
        else:
            reference.encoder.norm = None
            reference.decoder.norm = None


def reference_logits(model: Transformer, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The same logits, from ``torch.nn.Transformer`` on a padded batch."""
    config = model.config
    reference = nn.Transformer(
        config.d_model, config.num_heads, config.encoder_depth, config.decoder_depth, config.d_ff,
        dropout=0.0, activation=ACTIVATIONS[config.activation], batch_first=True, norm_first=config.norm == "pre",
        layer_norm_eps=1e-6,
    ).eval()  # fmt: skip
    copy_into_reference(model, reference)

    def embed(sentences: list[Tensor], weight: Tensor, learned: nn.Embedding | None) -> tuple[Tensor, Tensor]:
        ids = nn.utils.rnn.pad_sequence(sentences, batch_first=True)
        padding = nn.utils.rnn.pad_sequence([torch.zeros(len(s), dtype=torch.bool) for s in sentences], True, True)
        angles = [
            [p / 10000 ** (i // 2 * 2 / config.d_model) for i in range(config.d_model)] for p in range(ids.shape[1])
        ]
        table = torch.tensor([[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angles])
        positions = table if learned is None else learned.weight[: ids.shape[1]]
        return weight[ids] * math.sqrt(config.d_model) + positions, padding

    src_weight = model.embedding.weight if model.src_embedding is None else model.src_embedding.weight
    src, src_padding = embed([s for s, _ in pairs], src_weight, model.src_input.positions)
    tgt, tgt_padding = embed([t for _, t in pairs], model.embedding.weight, model.tgt_input.positions)
    future = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
    hidden = reference(
        src, tgt, tgt_mask=future, src_key_padding_mask=src_padding, memory_key_padding_mask=src_padding,
        tgt_key_padding_mask=tgt_padding,
    )  # fmt: skip
    softmax = model.embedding.weight if model.softmax is None else model.softmax.weight
    bias = 0.0 if model.output_bias is None else model.output_bias
    return (hidden @ softmax.t() + bias)[~tgt_padding]


@pytest.mark.parametrize("changes", [
    {},
    {"norm": "pre"},
    {"attention_bias": True},
    {"positions": "learned", "max_positions": 16},
    {"tie_embeddings": "target"},
    {"tie_embeddings": "none"},
    {"encoder_layers": 3, "decoder_layers": 1},
    {"activation": "swish"},
    {"activation": "gelu", "attention_bias": True, "output_bias": True},
], ids=lambda changes: "-".join(map(str, changes.values())) or "paper")  # fmt: skip
def test_logits_equal_pytorchs_transformer(changes: dict[str, Any]) -> None:
    pairs = draw_pairs()
    torch.manual_seed(1)
    model = Transformer(tiny_config(**changes), VOCAB).eval()
    if changes.get("attention_bias"):
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter)
    torch.testing.assert_close(model_logits(model, pairs), reference_logits(model, pairs), rtol=1e-5, atol=1e-5)


def test_packed_equals_one_sentence_at_a_time() -> None:
    pairs = draw_pairs()
    model = Transformer(tiny_config(d_k=6, d_v=10), VOCAB).eval()
    alone = torch.cat([model_logits(model, [pair]) for pair in pairs])
    torch.testing.assert_close(model_logits(model, pairs), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_future_tokens_do_not_leak(norm: str) -> None:
    pairs = draw_pairs()
    model = Transformer(tiny_config(norm=norm), VOCAB).eval()
    before = model_logits(model, pairs)
    changed = [(s, t.clone()) for s, t in pairs]
    changed[0][1][4] = (changed[0][1][4] + 1) % VOCAB
    after = model_logits(model, changed)
    assert torch.equal(before[:4], after[:4])
    assert not torch.allclose(before[4:7], after[4:7])
    assert torch.equal(before[7:], after[7:])


def test_bf16_logits_are_close_to_fp32() -> None:
    pairs = draw_pairs()
    model = Transformer(tiny_config(), VOCAB).eval()
    expected = model_logits(model, pairs)
    actual = model_logits(model.to(torch.bfloat16), pairs).float()
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "d_k": 6, "d_v": 10, "attention_bias": True},
        {"decoder_layers": 1},
        {"activation": "swish", "attention_bias": True, "output_bias": True},
        {"activation": "gelu"},
    ],
)
def test_incremental_decoding_equals_the_packed_decoder(
    changes: dict[str, Any], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    pairs = draw_pairs()
    model = Transformer(tiny_config(**changes), VOCAB).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    src, packing = pack([s for s, _ in pairs])
    beam, length = 2, 40
    decoder = IncrementalDecoder(model, src, packing, beam)
    targets = torch.randint(4, VOCAB, (len(pairs) * beam, length))
    rows = [torch.arange(len(pairs)).repeat_interleave(beam), *[torch.arange(len(targets))] * (length - 1)]
    steps = torch.stack([decoder.step(*step) for step in zip(targets.t(), rows, strict=True)], dim=1)
    for row, target in enumerate(targets):
        expected = model_logits(model, [(pairs[row // beam][0], target)])
        torch.testing.assert_close(steps[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kernels", "rows"),
    [("1", [1, 1, 5, 4]), ("0", [1, 1, 5, 4]), ("1", [1, 5, 4, 7])],
    ids=["packed", "padded", "ragged"],
)
def test_incremental_decoding_follows_reordered_and_dropped_rows(
    kernels: str, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    pairs = draw_pairs()
    model = Transformer(tiny_config(), VOCAB).eval()
    src, packing = pack([s for s, _ in pairs])
    decoder = IncrementalDecoder(model, src, packing, 2)
    first = torch.arange(4, 4 + 2 * len(pairs))
    decoder.step(first, torch.arange(len(pairs)).repeat_interleave(2))
    assert decoder.ragged == (kernels == "1")
    logits = decoder.step(torch.full((4,), 9), torch.tensor(rows))
    for actual, row in zip(logits, rows, strict=True):
        expected = model_logits(model, [(pairs[row // 2][0], torch.tensor([first[row], 9]))])[1]
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("d_k", "d_v"), [(8, 8), (4, 16)])
def test_each_projection_has_its_own_glorot_bound(d_k: int, d_v: int) -> None:
    config = tiny_config(d_k=d_k, d_v=d_v)
    attention = Transformer(config, VOCAB).encoder[0].self_attention
    widths = [config.num_heads * d_k, config.num_heads * d_k, config.num_heads * d_v]
    for part, width in zip(attention.qkv.weight.split(widths), widths, strict=True):
        bound = math.sqrt(6 / (config.d_model + width))
        assert 0.95 * bound < part.abs().max() <= bound
