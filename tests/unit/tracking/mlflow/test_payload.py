"""What the records of a run carry, and how curves stay short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dstransformer.tracking.metrics_log import logged_metrics
from dstransformer.tracking.mlflow.payload import MAX_POINTS, point_stride, steps_in
from dstransformer.tracking.mlflow.system_metrics import publishing_interval


@pytest.mark.parametrize(("points", "stride"), [(1, 1), (2000, 1), (4000, 1), (4001, 2), (100_000, 25)])
def test_a_curve_has_at_most_a_few_thousand_points(points: int, stride: int) -> None:
    assert point_stride(points) == stride
    assert points / stride <= MAX_POINTS


def test_a_run_that_is_sent_again_is_thinned_too(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    lines = [{"kind": "train", "step": step, "time": 1.0, "loss": 2.0} for step in range(1, 10_001)]
    lines += [{"kind": "valid", "step": step, "time": 1.0, "bleu": 2.0} for step in range(1, 11)]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = logged_metrics(metrics)
    losses = [step for name, _, _, step in found if name == "train/loss"]
    assert losses == list(range(3, 10_001, 3))
    assert len([name for name, *_ in found if name == "valid/bleu"]) == 10


def test_system_metrics_of_a_week_are_a_few_thousand_points() -> None:
    age, points = 0.0, 0
    while age < 7 * 24 * 3600:
        age += publishing_interval(10.0, age)
        points += 1
    assert points < 3000
    assert publishing_interval(10.0, 60.0) == 10.0


def test_steps_are_those_of_complete_checkpoints(tmp_path: Path) -> None:
    for name in ("step-00000012", "step-00000004", ".partial-step-00000016", "step-odd"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").touch()
    assert steps_in(tmp_path) == [4, 12]
    assert steps_in(tmp_path / "missing") == []
