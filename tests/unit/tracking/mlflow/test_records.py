"""What records hold of checkpoints and system metrics."""

from __future__ import annotations

from pathlib import Path

from dstransformer.tracking.mlflow.records import steps_in
from dstransformer.tracking.mlflow.tracker import publishing_interval


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
