"""A schedule that ends with the training, in a run and after its extension."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.processes.launching import run_dst
from support.training.runs import TINY

from dstransformer.config import load_config
from dstransformer.training.schedule import learning_rate

KIND = ["schedule.kind=cosine", "schedule.final=0.1", "schedule.warmup_steps=2"]


def logged(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["lr"] for line in lines if line["kind"] == "train"]


def test_a_run_follows_its_schedule_and_says_where_an_extension_jumps(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    mine = [value for value in TINY if not value.startswith("schedule.")] + KIND
    command = ["train", "toy", "--corpus", str(toy_corpus), "--run", str(run), "--set", *mine]
    done = run_dst(*command, "training.max_updates=6")
    assert done.returncode == 0, done.stderr
    longer = run_dst(*command, "training.max_updates=9")
    assert longer.returncode == 0, longer.stderr
    said = [line for line in longer.stderr.splitlines() if "the learning rate of update 7 jumps from" in line]
    assert len(said) == 1
    assert "cosine ends with training.max_updates, 6 before" in said[0]
    schedule = load_config("toy", KIND).schedule
    expected = [learning_rate(step, 32, schedule, 6 if step < 7 else 9) for step in range(1, 10)]
    assert logged(run) == pytest.approx(expected)
