"""Sub-layers that begin at zero, with real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.processes.ranks import run_ranks

WORKER = Path(__file__).with_name("worker.py")
#: The encoder has its first gradient in the second update, when the attention over it is no longer zero.
RATE, UPDATES = 1e-3, 3
OVERRIDES = [
    "training.zero_init_residual=true", f"training.max_updates={UPDATES}", "schedule.warmup_steps=1",
    f"schedule.peak={RATE}",
]  # fmt: skip


@pytest.mark.slow
def test_updates_move_them_away_from_zero(toy_corpus: Path, tmp_path: Path) -> None:
    case = {"overrides": OVERRIDES, "resume": None, "final": False}
    cases = [{**case, "name": stage, "fragments": [stage, "fp32"]} for stage in ("zero1", "zero3")]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(2, str(WORKER), str(tmp_path / "cases.json"), str(toy_corpus), str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for stage in ("zero1", "zero3"):
        weights = torch.load(tmp_path / stage / "weights.pt")
        zeroed = {name for name in weights if name.endswith((".out.weight", ".outer.weight"))}
        assert len(zeroed) == 10  # two layers each side, of two and three sub-layers
        for name, weight in weights.items():
            if name in zeroed:
                assert 0 < float(weight.abs().max()) < 2 * UPDATES * RATE, name  # an update of Adam is about the rate
            elif name.endswith("weight") and "norm" not in name:
                assert float(weight.abs().max()) > 2 * UPDATES * RATE, name
