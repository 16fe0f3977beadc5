"""ZeRO stage 3 with a copy of the weights on each node (ZeRO++ hpZ): a resumed run computes with what it loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.ranks import run_ranks

WORKER = Path(__file__).with_name("worker.py")
SAVED_AT, UPDATES = 3, 5


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(toy_corpus: Path, tmp_path: Path) -> None:
    section = {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 100}
    (tmp_path / "hpz.json").write_text(json.dumps({"zero_optimization": section}))
    common: dict[str, Any] = {
        "overrides": [f"training.max_updates={UPDATES}", f"checkpoint.every_updates={SAVED_AT}"],
        "fragments": [str(tmp_path / "hpz.json"), "bf16"],
        "final": False,
    }
    resumed = {"name": "resumed", **common, "resume": f"whole/checkpoints/step-{SAVED_AT:08}"}
    (tmp_path / "cases.json").write_text(json.dumps([{"name": "whole", **common}, resumed]))
    done = run_ranks(2, str(WORKER), str(tmp_path / "cases.json"), str(toy_corpus), str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert losses(tmp_path / "resumed") == losses(tmp_path / "whole")[SAVED_AT:]
    whole, again = (torch.load(tmp_path / name / "weights.pt") for name in ("whole", "resumed"))
    torch.testing.assert_close(again, whole, rtol=0, atol=0)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]
