"""8-bit weights in training: the loss of the quantised weights, and its gradients as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models.packed import VOCAB, model_loss, tiny_config
from torch import Tensor

from dstransformer.model import Transformer
from dstransformer.model.loss import recompute
from dstransformer.model.ops import int8_values

BIASED = {"norm": "pre", "positions": "learned", "max_positions": 20, "tie_embeddings": "none", "output_bias": True}


def build(config: dict[str, Any], **options: Any) -> Transformer:
    torch.manual_seed(3)
    return Transformer(tiny_config(dropout=0.1, **config), VOCAB, **options)


def compute(model: Transformer, r_drop: float) -> dict[str, Tensor]:
    """The loss, and its gradient by the name of the weight."""
    torch.manual_seed(5)
    loss = model_loss(model, r_drop)
    loss.backward()
    return {"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize(
    ("config", "r_drop"),
    [({}, 0.0), (BIASED, 0.0), ({"tie_embeddings": "target"}, 5.0)],
    ids=["tied", "untied", "recomputed"],
)
def test_the_gradients_are_those_at_the_quantised_weights(
    config: dict[str, Any],
    r_drop: float,
    dtype: torch.dtype | None,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit for bit. Weights are what they were, and vectors and learned positions are never quantised."""
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    trained = build(config, dtype=dtype, int8_weights=True)
    before = {name: weight.detach().clone() for name, weight in trained.named_parameters()}
    plain = build(config, dtype=dtype)
    if r_drop:
        trained.call_layer = plain.call_layer = recompute
    names = plain.int8_names()
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            assert (name in names) == (weight.dim() == 2 and "positions" not in name)
            if name in names:
                weight.copy_(int8_values(weight))
                assert not torch.equal(weight, before[name])
    found = compute(trained, r_drop)
    assert len(found) == 1 + len(before)
    torch.testing.assert_close(found, compute(plain, r_drop), rtol=0, atol=0)
    torch.testing.assert_close(dict(trained.named_parameters()), before, rtol=0, atol=0)


def test_each_row_has_its_own_scale() -> None:
    rows = torch.tensor(
        [[127.0, -1.4, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0], [1e-44, 0.0, 0.0, 0.0], [-2.54, 0.051, 0.0, 1.0]]
    )
    found = int8_values(rows)
    torch.testing.assert_close(found[0], torch.tensor([127.0, -1.0, 0.0, 2.0]), rtol=0, atol=0)
    assert found[1].eq(0.0).all()
    assert found.isfinite().all()
    torch.testing.assert_close(found[3], torch.tensor([-2.54, 0.06, 0.0, 1.0]))
    torch.testing.assert_close(int8_values(found), found)
    assert int8_values(torch.tensor([[1.0, float("nan")]])).isnan().all(), "so a diverged run is still noticed"
