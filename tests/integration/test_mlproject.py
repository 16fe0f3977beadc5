"""``mlflow run`` with the ``MLproject`` of this repository."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient
from support.processes.forks import REPOSITORY, environment
from support.processes.launching import free_port, run_command
from support.services.mlflow_runs import send_rest
from support.training.runs import TINY

from dstransformer.config import load_config
from dstransformer.tracking.mlflow.location import resolve_experiment

EXPERIMENT = "dstransformer"


def test_the_experiment_that_the_guide_names_is_that_of_the_runs() -> None:
    assert resolve_experiment(load_config("base").tracking.experiment) == EXPERIMENT
    guide = (REPOSITORY / "docs" / "guide" / "tracking.md").read_text()
    assert guide.count(f"mlflow run . --env-manager local --experiment-name {EXPERIMENT} ") == 2


@pytest.mark.slow
def test_mlflow_run_trains_and_is_the_parent(toy_corpus: Path, tmp_path: Path, empty_store: Path) -> None:
    store = Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))
    preset = tmp_path / "tiny.yaml"
    preset.write_text(make_preset())
    values = {"preset": preset, "corpus": toy_corpus, "run": tmp_path / "run", "set": "training.max_updates=2"}
    command = [sys.executable, "-m", "mlflow", "run", str(REPOSITORY), "--env-manager", "local", "-e", "train"]
    command += ["--experiment-name", EXPERIMENT, *(f"-P{name}={value}" for name, value in values.items())]
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{store}", "DLTS_HOSTFILE": str(tmp_path / "none")}
    done = run_command(command, env=environment({**variables, "MASTER_PORT": str(free_port())}), cwd=tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    send_rest(tmp_path / "run")
    client = MlflowClient(f"sqlite:///{store}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    parent, child = sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.start_time)
    assert {parent.info.status, child.info.status} == {"FINISHED"}
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.data.params["preset"] == str(preset)
    assert child.data.params["training.max_updates"] == "2"
    assert "train/loss" in child.data.metrics


def make_preset() -> str:
    """The tiny run as a preset."""
    tree: dict[str, object] = {"extends": "toy"}
    for override in TINY:
        key, value = override.split("=")
        section, name = key.split(".")
        if section != "tracking":
            values = tree.setdefault(section, {})
            assert isinstance(values, dict)
            values[name] = yaml.safe_load(value)
    return yaml.safe_dump(tree, sort_keys=False)
