"""Which run a bundle belongs to, and what is recorded there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow.utils.validation import _validate_metric_name

from dstransformer.tracking.mlflow.outbox import Outbox
from dstransformer.tracking.mlflow.tracked_run import find_run, log_evaluation


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "base" / "checkpoints" / "step-00000002" / "bundle").mkdir(parents=True)
    (tmp_path / "runs" / "base" / "tracking.json").write_text("{}")
    return tmp_path / "runs" / "base"


def test_a_bundle_belongs_to_the_run_that_it_lies_in_or_names(run: Path, tmp_path: Path) -> None:
    assert find_run(run / "bundle", None) == run
    assert find_run(run / "checkpoints" / "step-00000002" / "bundle", "/elsewhere") == run
    assert find_run(tmp_path / "average", str(run)) == run
    assert find_run(tmp_path / "average", "/elsewhere") is None
    assert find_run(tmp_path / "average", None) is None


@pytest.mark.parametrize(("name", "logged"), [
    ("../texts/test.de", "texts/test.de"),
    ("/data//a/./test.de", "data/a/test.de"),
    ("wmt14/full en-de", "wmt14/full en-de"),
    ("..", "test"),
    ("x" * 150 + "/" + "y" * 199, "y" * 199),
])  # fmt: skip
def test_mlflow_takes_the_names_of_metrics(run: Path, name: str, logged: str) -> None:
    test_set = {"name": name, "digest": "d" * 32, "ref": "/text/ref.de"}
    log_evaluation(run, {"bundle": str(run / "bundle"), "step": 2, "metrics": {"bleu": 1.0}, "test_set": test_set})
    (record,) = Outbox(run).records("evaluation")
    assert record["name"] == logged
    _validate_metric_name(f"evaluate/{record['name']}/bleu_compound_split")


@pytest.mark.parametrize(("bundle", "models"), [
    ("bundle", ["{run}/bundle", "bundle"]),
    (
        "checkpoints/step-00000002/bundle",
        [
            "{run}/checkpoints/step-00000002/bundle",
            "checkpoints/step-00000002/bundle",
            "{run}/checkpoints/step-00000002",
        ],
    ),
])  # fmt: skip
def test_the_record_names_test_set_and_model(run: Path, bundle: str, models: list[str]) -> None:
    result = {
        "bundle": str(run / bundle),
        "step": 2,
        "metrics": {"bleu": 12.5},
        "beam_size": 4,
        "test_set": {"name": "täst:set (1)", "digest": "d" * 32, "ref": "/text/ref.de"},
    }
    log_evaluation(run, result)
    (record,) = Outbox(run).records("evaluation")
    assert (record["op"], record["step"], record["metrics"]) == ("evaluation", 2, {"bleu": 12.5})
    assert record["dataset"] == {"name": "t-st-set -1-", "digest": "d" * 32, "path": "/text/ref.de"}
    assert json.loads(record["text"]) == result
    assert record["models"] == [path.replace("{run}", str(run)) for path in models]
