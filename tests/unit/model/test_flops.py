from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dstransformer.config import ModelConfig, load_config
from dstransformer.data.packing import pack_pairs
from dstransformer.data.plan import LengthSums
from dstransformer.model import Transformer, training_flops
from dstransformer.model.loss import Objective

VOCABULARY = 50
SENTENCES = 8
SRC, TGT = 5, 8  # tokens per sentence, including its end token; nothing is padded

SMALL = ["model.d_model=32", "model.d_ff=24", "model.num_heads=2", "model.d_k=12", "model.d_v=20", "model.num_layers=2"]


def small_config(*changes: str) -> ModelConfig:
    return load_config("toy", [*SMALL, *changes]).model


def lengths(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize("changes", [
    [],
    ["model.norm=pre", "model.positions=learned"],
    ["model.tie_embeddings=none", "model.attention_bias=true"],
    ["model.tie_embeddings=target", "model.d_k=16", "model.d_v=16"],
    ["model.dropout=0.1", "model.attention_dropout=0.1", "model.activation_dropout=0.1", "model.num_layers=1"],
    ["model.vocab_multiple=64", "model.num_heads=3"],
    ["model.encoder_layers=4", "model.decoder_layers=1"],
])  # fmt: skip
def test_the_formula_equals_what_pytorch_counts(changes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward and backward pass of the model, whose products PyTorch counts one by one."""
    monkeypatch.setenv("DST_CPU_KERNELS", "0")  # the FLOP counter does not see their products
    config = small_config(*changes)
    src, tgt = lengths(*[SRC - 1] * SENTENCES), lengths(*[TGT - 1] * SENTENCES)
    ids = [np.full(int(sides.sum()), 7, dtype=np.int32) for sides in (src, tgt)]
    batch = pack_pairs(ids[0], src, ids[1], tgt)
    assert batch.src_packing.rows == SENTENCES * SRC, "filler would be counted"
    assert batch.tgt_packing.rows == SENTENCES * TGT
    model = Transformer(config, VOCABULARY, "padded").bfloat16()  # fp32's fused attention recomputes its scores
    with FlopCounterMode(display=False) as counter:
        Objective(model, 0.1)(*batch).loss.backward()
    rows = config.embedding_rows(VOCABULARY)
    assert model.softmax_weight.shape[0] == rows
    # PyTorch also computes what the causal mask hides, which does not count as work of the model.
    hidden = SENTENCES * (TGT * TGT - TGT * (TGT + 1) // 2)
    masked = 3 * 2 * config.decoder_depth * config.num_heads * (config.d_k + config.d_v) * hidden
    counted = training_flops(config, rows, LengthSums.of(src + 1, tgt + 1))
    assert counted == counter.get_total_flops() - masked


def test_sums_by_hand() -> None:
    sums = LengthSums.of(lengths(2, 3), lengths(4, 1))
    assert sums == LengthSums(src_tokens=5, tgt_tokens=5, src_src=4 + 9, tgt_tgt=10 + 1, tgt_src=8 + 3)


def test_parts_add_up_to_the_whole() -> None:
    config = small_config()
    drawn = np.random.default_rng(1).integers(1, 200, size=(2, 1000), dtype=np.int32)
    parts = [LengthSums.of(*drawn[:, start : start + 125]) for start in range(0, 1000, 125)]
    whole = training_flops(config, 56, LengthSums.of(*drawn))
    assert sum(training_flops(config, 56, part) for part in parts) == whole
    assert isinstance(whole, int), "a float cannot hold the total of a long training exactly"


def test_large_corpora_do_not_overflow() -> None:
    many = np.full(10_000_000, 1000, dtype=np.int32)
    assert LengthSums.of(many, many).src_src == 10**13


def test_there_are_about_six_operations_per_weight_and_token() -> None:
    """The rule of thumb of Kaplan et al. (2020), for the base model with one sentence of 25 tokens on each side."""
    config = load_config("base").model
    with torch.device("meta"):
        model = Transformer(config, 37000)
    encoder = sum(weight.numel() for weight in model.encoder.parameters())
    decoder = sum(weight.numel() for weight in (*model.decoder.parameters(), model.embedding.weight))
    counted = training_flops(config, 37000, LengthSums.of(lengths(25), lengths(25)))
    assert counted == pytest.approx(6 * 25 * (encoder + decoder), rel=0.02)
