"""What records hold of checkpoints, before and after a rollback, and of system metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.services.mlflow_server import evaluation_of, make_start

from dstransformer.tracking.events import CheckpointSaved, EvaluationDone, Rollback, TrainingProgress
from dstransformer.tracking.mlflow.outbox import Record
from dstransformer.tracking.mlflow.records import Recorder, steps_in
from dstransformer.tracking.mlflow.tracker import publishing_interval


def test_system_metrics_of_a_week_are_a_few_thousand_points() -> None:
    age, points = 0.0, 0
    while age < 7 * 24 * 3600:
        age += publishing_interval(10.0, age)
        points += 1
    assert points < 3000
    assert publishing_interval(10.0, 60.0) == 10.0


@pytest.mark.parametrize("in_between", [4, 6])
def test_a_checkpoint_after_a_rollback_has_no_loss_or_score_of_the_abandoned_updates(
    tmp_path: Path, in_between: int
) -> None:
    records: list[Record] = []
    recorder = Recorder(make_start(), tmp_path, records.append)
    log_every = make_start().config.training.log_every
    steps = [number * log_every for number in (2, 4, 6)]
    for step, loss in zip(steps, (4.0, 3.0, 2.0), strict=True):
        recorder.record(TrainingProgress(step, {"loss": loss}))
        recorder.record(EvaluationDone("valid", step, evaluation_of(bleu=loss)))
        recorder.record(CheckpointSaved(tmp_path / f"checkpoints/step-{step:08d}", "a" * 64, step, None))
    back, _, last = steps
    recorder.record(Rollback(1, "diverged", last, back, ((0, 2), (0, 6)), []))
    records.clear()
    for step in (back, in_between * log_every):
        recorder.record(CheckpointSaved(tmp_path / f"checkpoints/step-{step:08d}", "b" * 64, step, None))
    amended, new = records
    assert (scored(amended), amended["rewritten"]) == ({"train/loss": 4.0}, True)
    assert (scored(new), new["rewritten"]) == ({}, False)
    recorder.record(EvaluationDone("valid", last, evaluation_of(bleu=9.0)))
    scores = [record["scores"]["metrics"] for record in records if record["op"] == "checkpoint_scores"]
    assert scores == ([{"valid/bleu": 9.0}] if in_between == 6 else [])


def scored(checkpoint: Record) -> dict[str, Any]:
    """The scores in the record of a checkpoint."""
    return {name: value for scores in checkpoint["scores"] for name, value in scores["metrics"].items()}


def test_steps_are_those_of_complete_checkpoints(tmp_path: Path) -> None:
    for name in ("step-00000012", "step-00000004", ".partial-step-00000016", "step-odd"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").touch()
    assert steps_in(tmp_path) == [4, 12]
    assert steps_in(tmp_path / "missing") == []
