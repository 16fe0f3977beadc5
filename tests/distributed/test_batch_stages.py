"""Runs whose updates grow by stages: the same on any number of ranks, and resuming in the middle of a stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.ranks import run_ranks
from support.training.runs import losses

from dstransformer.training.checkpoints.format import read_checkpoint

WORKER = Path(__file__).with_name("worker.py")
SAVED_AT, UPDATES = 10, 24
STAGES = "batch.stages=[{epochs: 0.2, share: 0.3}, {epochs: 0.4, share: 0.6}]"
COMMON = [f"training.max_updates={UPDATES}", f"checkpoint.every_updates={SAVED_AT}", "model.dropout=0.1", STAGES]
COMMON += ["batch.src_tokens=2400", "batch.tgt_tokens=2400"]


def run_cases(out: Path, corpus: Path, ranks: int, *cases: dict[str, Any]) -> None:
    common = {"overrides": COMMON, "fragments": ["zero1", "fp32"], "final": False}
    (out / "cases.json").write_text(json.dumps([common | case for case in cases]))
    done = run_ranks(ranks, str(WORKER), str(out / "cases.json"), str(corpus), str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def tokens(run: Path) -> list[int]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["tgt_tokens"] for line in lines if line["kind"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 150])
def test_a_run_resumes_in_a_stage_bit_for_bit_on_any_number_of_ranks(
    toy_corpus: Path, tmp_path: Path, window: int
) -> None:
    step, more = f"checkpoints/step-{SAVED_AT:08}", {"overrides": [*COMMON, f"training.window_pairs={window}"]}
    whole_run = {"name": "whole", **more}
    run_cases(tmp_path, toy_corpus, 2, whole_run, {"name": "resumed", "resume": f"whole/{step}", **more})
    run_cases(tmp_path, toy_corpus, 1, {"name": "alone", **more}, {"name": "moved", "resume": f"whole/{step}", **more})
    assert read_checkpoint(tmp_path / "whole" / step).state.position.epoch == 0
    sizes = tokens(tmp_path / "whole")
    assert max(sizes[:6]) <= 720
    assert 720 < max(sizes[SAVED_AT - 2 : SAVED_AT + 2]) <= 1440, "the second stage goes on after the checkpoint"
    assert 1440 < max(sizes[-8:]) <= 2400
    whole = losses(tmp_path / "whole")
    assert losses(tmp_path / "resumed") == whole[SAVED_AT:]
    assert tokens(tmp_path / "resumed") == sizes[SAVED_AT:]
    weights = [torch.load(tmp_path / name / "weights.pt") for name in ("whole", "resumed")]
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert tokens(tmp_path / "alone") == sizes
    assert losses(tmp_path / "alone") == pytest.approx(whole, rel=1e-5), "the same updates on one rank"
    assert losses(tmp_path / "moved") == pytest.approx(whole[SAVED_AT:], rel=1e-5)
