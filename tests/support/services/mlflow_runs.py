"""Trackers that write to MLflow stores, and reading from those stores."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mlflow.entities import LoggedModel, Run
from mlflow.tracking import MlflowClient

from dstransformer.tracking.mlflow.location import TrackingState
from dstransformer.tracking.mlflow.outbox import Outbox
from dstransformer.tracking.mlflow.tracker import MlflowTracker
from support.processes.launching import run_dst

EXPERIMENT = "translation"


class QuickTracker(MlflowTracker):
    flush_seconds, retry_seconds, system_metrics_seconds = 0.05, 0.5, 0.2


def make_tracker(
    run_folder: Path, uri: str, *, system_metrics: bool = False, announce: Callable[[str], None] = logging.debug
) -> MlflowTracker:
    return QuickTracker(run_folder, uri, EXPERIMENT, system_metrics=system_metrics, announce=announce)


def tracked_run(run_folder: Path) -> tuple[MlflowClient, Run]:
    state = TrackingState.load(run_folder)
    assert state is not None
    assert state.run_id is not None
    client = MlflowClient(state.tracking_uri)
    return client, client.get_run(state.run_id)


def has_run(run_folder: Path) -> bool:
    state = TrackingState.load(run_folder)
    return state is not None and state.run_id is not None


def pending(run_folder: Path) -> int:
    return Outbox(run_folder).pending()


def send_rest(run: Path) -> None:
    """On a slow machine the end of a run does not wait for all its records."""
    if pending(run):
        done = run_dst("track", str(run))
        assert done.returncode == 0, done.stderr
    assert not pending(run)


def artifact_text(client: MlflowClient, run: Run, path: str, folder: Path) -> str:
    return Path(client.download_artifacts(run.info.run_id, path, str(folder))).read_text(encoding="utf-8")


def train_steps(client: MlflowClient, run: Run) -> list[int]:
    return sorted(metric.step for metric in client.get_metric_history(run.info.run_id, "train/loss"))


def logged_models(client: MlflowClient, run: Run, kind: str) -> list[LoggedModel]:
    """The models of a run of a kind, ``checkpoint`` or ``translation``, in the order of their steps."""
    query = f"source_run_id = '{run.info.run_id}' AND model_type = '{kind}'"
    found = client.search_logged_models([run.info.experiment_id], query)
    return sorted(found, key=lambda model: (int(model.params["step"]), model.creation_timestamp))


def bundle_model(client: MlflowClient, run: Run) -> LoggedModel:
    """The only bundle of a run."""
    (model,) = logged_models(client, run, "translation")
    return model


def make_bundle(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    (folder / "config.yaml").write_text("model: {}\n")
    return folder
