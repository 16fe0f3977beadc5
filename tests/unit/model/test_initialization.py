"""Initial weights other than the paper's."""

from __future__ import annotations

import pytest
import torch
from support.models.packed import VOCAB, draw_pairs, pack, tiny_config

from dstransformer.model import Transformer
from dstransformer.model.loss import zero_residual_branches
from dstransformer.model.transformer import PackedAttention


def build(norm: str) -> Transformer:
    torch.manual_seed(1)
    return Transformer(tiny_config(norm=norm, dropout=0.0), VOCAB).eval()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_only_the_last_matrix_of_each_sub_layer_begins_at_zero(norm: str) -> None:
    zeroed, usual = build(norm), build(norm)
    zero_residual_branches(zeroed)
    changed = set()
    for (name, weight), expected in zip(zeroed.named_parameters(), usual.parameters(), strict=True):
        if not torch.equal(weight, expected):
            assert not weight.any()
            changed.add(name)
    assert changed == {name for name, _ in usual.named_parameters() if name.endswith(("out.weight", "outer.weight"))}


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_layer_begins_as_its_norms(norm: str) -> None:
    model = build(norm)
    zero_residual_branches(model)
    _, packing = pack([src for src, _ in draw_pairs()])
    x = torch.randn(packing.rows, model.config.d_model)
    out = model.encoder[0](x, PackedAttention(packing))
    expected = x
    if norm == "post":
        for _ in range(2):
            expected = (expected - expected.mean(1, keepdim=True)) / expected.var(1, correction=0, keepdim=True).sqrt()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
