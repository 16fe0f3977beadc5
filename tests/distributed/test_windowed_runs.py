"""Runs whose epochs are planned in windows: the same updates on any number of ranks, and resuming in any window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.ranks import run_ranks

from dstransformer.training.checkpoints.format import read_checkpoint

WORKER = Path(__file__).with_name("worker.py")
SAVED_AT, UPDATES = 13, 24
COMMON = [f"training.max_updates={UPDATES}", f"checkpoint.every_updates={SAVED_AT}", "training.window_pairs=150"]
COMMON += ["model.dropout=0.1", "training.bpe_dropout=0.1"]


def run_cases(out: Path, corpus: Path, ranks: int, *cases: dict[str, Any]) -> None:
    common = {"overrides": COMMON, "fragments": ["zero1", "fp32"], "final": False}
    (out / "cases.json").write_text(json.dumps([common | case for case in cases]))
    done = run_ranks(ranks, str(WORKER), str(out / "cases.json"), str(corpus), str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.mark.slow
def test_a_run_in_windows_resumes_bit_for_bit_on_any_number_of_ranks(toy_corpus: Path, tmp_path: Path) -> None:
    step = f"checkpoints/step-{SAVED_AT:08}"
    run_cases(tmp_path, toy_corpus, 2, {"name": "whole"}, {"name": "resumed", "resume": f"whole/{step}"})
    run_cases(tmp_path, toy_corpus, 1, {"name": "alone"}, {"name": "moved", "resume": f"whole/{step}"})
    position = read_checkpoint(tmp_path / "whole" / step).state.position
    assert (position.epoch, position.window, position.update) == (0, 1, 3), "inside of a window"
    whole = losses(tmp_path / "whole")
    assert losses(tmp_path / "resumed") == whole[SAVED_AT:]
    weights = [torch.load(tmp_path / name / "weights.pt") for name in ("whole", "resumed")]
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert losses(tmp_path / "alone") == pytest.approx(whole, rel=1e-5), "the same updates on one rank"
    assert losses(tmp_path / "moved") == pytest.approx(whole[SAVED_AT:], rel=1e-5)
