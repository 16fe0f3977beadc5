"""Activation checkpointing on real ranks: the same updates, bit for bit, at every ZeRO stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.processes.ranks import run_ranks
from support.training.runs import losses

WORKER = Path(__file__).with_name("worker.py")
COMMON = ["training.max_updates=3", "model.dropout=0.1", "batch.micro_batches=4", "training.log_every=1"]

#: ZeRO stages with precisions, and the weight of R-Drop.
FIRST_TIER = [("zero1", "bf16", 0), ("zero3", "fp32", 0)]
OTHERS = [
    ("zero0", "fp32", 0), ("zero1", "fp32", 0), ("zero2", "fp16", 0), ("zero3", "bf16", 0), ("zero3", "fp32", 5),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("layouts", [FIRST_TIER, pytest.param(OTHERS, marks=pytest.mark.extended)], ids=["1", "2"])
def test_losses_and_weights_are_the_same_bit_for_bit(
    layouts: list[tuple[str, str, int]], toy_corpus: Path, tmp_path: Path
) -> None:
    scattered = tmp_path / "scattered.json"  # even the smallest weight is gathered, and gathered again
    scattered.write_text(json.dumps({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}))
    cases = [
        {
            "name": f"{stage}-{precision}-{r_drop}-{value}",
            "overrides": [*COMMON, f"loss.r_drop={r_drop}", f"training.activation_checkpointing={value}"],
            "fragments": [str(scattered) if stage == "zero3" else stage, precision],
            "final": False,
        }
        for stage, precision, r_drop in layouts
        for value in ("false", "true")
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    operators = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "operators")}
    done = run_ranks(2, str(WORKER), str(tmp_path / "cases.json"), str(toy_corpus), str(tmp_path), extra=operators)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for stage, precision, r_drop in layouts:
        plain, again = (tmp_path / f"{stage}-{precision}-{r_drop}-{value}" for value in ("false", "true"))
        assert losses(again) == losses(plain), again.name
        weights = [torch.load(run / "weights.pt") for run in (again, plain)]
        torch.testing.assert_close(*weights, rtol=0, atol=0)
