"""Activation checkpointing: the same loss and gradients, bit for bit, from layers that are computed again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models.packed import VOCAB, model_loss, tiny_config
from torch import Tensor, nn

from dstransformer.model import Transformer
from dstransformer.model.loss import recompute

DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1, "num_layers": 3}


def compute(*, recomputed: bool, r_drop: float, dtype: torch.dtype | None, **changes: Any) -> list[Tensor]:
    """Loss and all gradients of a micro-batch, and the state of the random generator after it."""
    torch.manual_seed(1)
    config = tiny_config(**DROPOUT | changes)
    model = Transformer(config, VOCAB, dtype=dtype)
    if recomputed:
        model.call_layer = recompute
    torch.manual_seed(2)
    loss = model_loss(model, r_drop)
    state = torch.get_rng_state()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None), state, torch.get_rng_state()]


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("norm", "r_drop"), [("post", 0.0), ("pre", 0.0), ("post", 5.0)])
def test_loss_and_gradients_are_the_same_bit_for_bit(
    norm: str, r_drop: float, dtype: torch.dtype | None, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    changes = {"activation": "gelu", "output_bias": True} if norm == "pre" else {}
    plain, again = (compute(recomputed=on, r_drop=r_drop, dtype=dtype, norm=norm, **changes) for on in (False, True))
    assert len(plain) == len(again) > 50
    torch.testing.assert_close(again, plain, rtol=0, atol=0)


def test_each_layer_runs_twice_in_training_only() -> None:
    model = Transformer(tiny_config(**DROPOUT), VOCAB)
    model.call_layer = recompute
    runs: list[nn.Module] = []
    for layer in (*model.encoder, *model.decoder):
        layer.self_attention.register_forward_hook(lambda module, *_: runs.append(module))
    model_loss(model).backward()
    assert len(runs) == 2 * 6
    runs.clear()
    with torch.no_grad():
        model_loss(model.eval())
    assert len(runs) == 6
