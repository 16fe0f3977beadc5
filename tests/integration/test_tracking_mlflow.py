"""Tracking in real MLflow stores, a server process and a SQLite file, and all that can go wrong with a server."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from support.processes.launching import HANG_SECONDS, run_dst
from support.services.mlflow_runs import (
    EXPERIMENT,
    artifact_text,
    bundle_model,
    has_run,
    logged_models,
    make_bundle,
    make_tracker,
    pending,
    tracked_run,
    train_steps,
)
from support.services.mlflow_server import MlflowServer, evaluation_of, make_start, wait_until

from dstransformer.config import load_config
from dstransformer.errors import StorageError
from dstransformer.evaluation import Sample
from dstransformer.tracking.events import (
    BundleSaved,
    CheckpointSaved,
    EvaluationDone,
    NonfiniteUpdate,
    Rollback,
    RunEnd,
    TrainingProgress,
)
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLog
from dstransformer.tracking.mlflow.location import TrackingState, resolve_tracking_uri
from dstransformer.tracking.mlflow.outbox import CURSOR_NAME, OUTBOX_NAME
from dstransformer.tracking.mlflow.tracked_run import send_pending
from dstransformer.training.build import build_tracker

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"), empty_store)
    server.start()
    yield server
    server.kill()


SAMPLE = Sample('A "dog", running.', "Ein Hund, der läuft.", "Ein Hund\nläuft.")
VALID = evaluation_of(loss=3.5, bleu=12.5, signature="nrefs:1", digest="d" * 32, samples=[SAMPLE])


def record_run(server: MlflowServer, run_folder: Path) -> list[str]:
    """Record a whole run; return what the tracker announced."""
    said: list[str] = []
    metrics = MetricsLog(run_folder / METRICS_NAME)
    tracker = make_tracker(run_folder, server.uri, system_metrics=True, announce=said.append)
    tracker.emit(replace(make_start(), register="en-de"))
    metrics.emit(TrainingProgress(10, {"loss": 4.5, "lr": 1e-3}))
    tracker.emit(TrainingProgress(10, {"loss": 4.5, "lr": 1e-3, "loss_scale": 65536.0}))
    tracker.emit(TrainingProgress(20, {"loss": float("nan"), "lr": 2e-3, "loss_scale": 32768.0}))
    tracker.emit(EvaluationDone("valid", 20, VALID))
    tracker.emit(CheckpointSaved(run_folder / "checkpoints/step-00000020", "d" * 64, 20, 12.5))
    final = evaluation_of(loss=1.5, bleu=33.0, signature="nrefs:1", digest="e" * 32, samples=[SAMPLE])
    tracker.emit(BundleSaved(make_bundle(run_folder / "averaged"), 20, {"final_test": final}))
    wait_until(lambda: has_run(run_folder))
    client, run = tracked_run(run_folder)
    wait_until(lambda: "system/cpu_utilization_percentage" in client.get_run(run.info.run_id).data.metrics)
    tracker.emit(RunEnd("finished"))
    return said


def test_a_server_holds_the_whole_record_of_a_run(server: MlflowServer, run_folder: Path, tmp_path: Path) -> None:
    said = record_run(server, run_folder)
    client, run = tracked_run(run_folder)
    page = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?workflowType=machine_learning"
    assert said == [  # the page at the start and at the end
        f"MLflow: {server.uri}/{page}",
        "MLflow: en-de version 1: BLEU 33.00 on test",
        f"MLflow: {server.uri}/{page}",
    ]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "base-seed1"
    assert not (run_folder / "tracking-pending").exists()
    assert run.data.params["model.d_model"] == "512"
    assert run.data.params["deepspeed"] == '["zero1", "bf16"]'
    assert run.data.tags["world_size"] == "8"
    assert run.data.tags["mlflow.source.git.commit"] == "0123abc"
    assert {name for name in run.data.tags if not name.startswith("mlflow.")} == {
        "git_revision",
        "languages",
        "world_size",
    }
    assert "**33.00** on test; sacrebleu `nrefs:1`" in run.data.tags["mlflow.note.content"]
    assert json.loads(artifact_text(client, run, "signatures/valid.json", tmp_path)) == {"bleu": "nrefs:1"}
    assert client.search_runs([run.info.experiment_id], "metrics.`final_test/bleu` = 33")
    assert run.data.metrics["valid/bleu"] == 12.5
    assert [m.value for m in client.get_metric_history(run.info.run_id, "train/lr")] == [1e-3, 2e-3]

    dataset = run.inputs.dataset_inputs[0].dataset
    assert dataset.name == "data/wmt14.en-de (en-de)"
    assert json.loads(dataset.profile)["pairs"] == {"train": 20}

    assert json.loads(artifact_text(client, run, "ds_config.json", tmp_path)) == {"zero_optimization": {"stage": 2}}
    assert "d_model: 512" in artifact_text(client, run, "config.yaml", tmp_path)
    table = json.loads(artifact_text(client, run, "samples/valid.json", tmp_path))
    assert table["columns"] == ["step", "source", "reference", "translation"]
    assert table["data"] == [[20, SAMPLE.source, SAMPLE.reference, SAMPLE.translation]]
    shown = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert {"path": "samples/valid.json", "type": "table"} in shown
    assert_models(client, run, run_folder)


def assert_models(client: MlflowClient, run: Run, run_folder: Path) -> None:
    """The run of :func:`record_run` has its checkpoint and its bundle as models, with the scores of each."""
    (checkpoint,) = logged_models(client, run, "checkpoint")
    assert checkpoint.name == "base-seed1 en-de step 20"
    assert checkpoint.tags["sha256"] == "d" * 64
    assert checkpoint.tags["path"] == str(run_folder / "checkpoints/step-00000020")
    assert checkpoint.tags["mlflow.model.isExternal"] == "true"
    assert {(m.key, m.value, m.dataset_name, m.dataset_digest) for m in checkpoint.metrics} == {
        ("valid/loss", 3.5, "data/wmt14.en-de (en-de) validation", "d" * 32),
        ("valid/bleu", 12.5, "data/wmt14.en-de (en-de) validation", "d" * 32),
    }
    assert [m.value for m in client.get_metric_history(run.info.run_id, "valid/bleu")] == [12.5]

    model = bundle_model(client, run)
    assert model.name == "base-seed1 en-de"
    note = model.tags["mlflow.note.content"]
    assert f"models:/{model.model_id}" in note
    assert "**33.00** on test" in note
    assert model.status == "READY"
    assert {(m.key, m.value, m.dataset_digest) for m in model.metrics} == {
        ("final_test/loss", 1.5, "e" * 32),
        ("final_test/bleu", 33.0, "e" * 32),
    }
    version = client.get_model_version("en-de", "1")
    assert version.tags == {"model_id": model.model_id, "score": "BLEU 33.00 on test"}
    assert version.description == note
    assert {output.model_id for output in run.outputs.model_outputs} == {model.model_id, checkpoint.model_id}
    # Final scores are stored once, as a point of their curve and as a metric of the model.
    assert [m.value for m in client.get_metric_history(run.info.run_id, "final_test/bleu")] == [33.0]
    files = {file.path for file in client.list_logged_model_artifacts(model.model_id)}
    assert {"MLmodel", "bundle", "code", "requirements.txt", "input_example.json"} <= files


def test_a_resumed_run_continues_the_same_mlflow_run(server: MlflowServer, run_folder: Path) -> None:
    first = make_tracker(run_folder, server.uri)
    first.emit(make_start())
    first.emit(TrainingProgress(10, {"loss": 4.5}))
    first.emit(RunEnd("killed"))
    client, run = tracked_run(run_folder)
    assert run.info.status == "KILLED"

    second = make_tracker(run_folder, server.uri)
    second.emit(make_start(resume_step=10, config=load_config("base", ["training.max_updates=200000"])))
    wait_until(lambda: client.get_run(run.info.run_id).info.status == "RUNNING")
    second.emit(TrainingProgress(20, {"loss": 4.0}))
    second.emit(RunEnd("finished"))
    _, resumed = tracked_run(run_folder)
    assert resumed.info.run_id == run.info.run_id
    assert resumed.info.status == "FINISHED"
    assert train_steps(client, resumed) == [10, 20]
    assert resumed.data.params["training.max_updates"] == "100000"
    assert resumed.data.tags["changed.training.max_updates"] == "200000"
    assert not any(name.startswith("changed.model") for name in resumed.data.tags)


def test_a_value_that_a_resume_sets_back_is_no_longer_called_changed(run_folder: Path, store: str) -> None:
    for step, updates, rate in ((None, 100_000, 2), (10, 200_000, 3), (20, 100_000, 3)):
        config = load_config("base", [f"training.max_updates={updates}", f"schedule.scale={rate}"])
        tracker = make_tracker(run_folder, store)
        tracker.emit(make_start(resume_step=step, config=config))
        tracker.emit(RunEnd("killed"))
    _, run = tracked_run(run_folder)
    changed = {name: value for name, value in run.data.tags.items() if name.startswith("changed.")}
    assert changed == {"changed.schedule.scale": "3.0"}
    assert run.data.params["schedule.scale"] == "2.0"


def test_a_divergence_is_recorded(server: MlflowServer, run_folder: Path, tmp_path: Path) -> None:
    bad = [NonfiniteUpdate(step, 0, step - 1, True, step - 4, (7 * step, 8 * step)) for step in (5, 6, 7)]
    rollback = Rollback(1, "too many in a row", 7, 3, ((0, 3), (0, 7)), bad)
    tracker = make_tracker(run_folder, server.uri)
    tracker.emit(make_start())
    for update in bad:
        tracker.emit(update)
    tracker.emit(rollback)
    tracker.emit(TrainingProgress(4, {"loss": 2.0}))
    tracker.emit(NonfiniteUpdate(6, 0, 9, False, 1, (42,)))  # there were more updates of that number
    tracker.emit(RunEnd("finished"))
    client, run = tracked_run(run_folder)
    assert run.data.tags["rollbacks"] == "1"
    assert json.loads(artifact_text(client, run, "divergence/rollback-1.json", tmp_path)) == rollback.to_json()
    table = json.loads(artifact_text(client, run, "divergence/bad_updates.json", tmp_path))
    assert table["columns"] == ["step", "epoch", "update", "skipped", "in_a_row", "pairs", "window"]
    rows = (
        [5, 0, 4, True, 1, "35 40", 0],
        [6, 0, 5, True, 2, "42 48", 0],
        [6, 0, 9, False, 1, "42", 0],
        [7, 0, 6, True, 3, "49 56", 0],
    )
    assert table["data"] == list(rows)
    shown = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert {"path": "divergence/bad_updates.json", "type": "table"} in shown


def test_without_a_server_the_store_is_beside_the_run_folder(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracker = make_tracker(run_folder, resolve_tracking_uri(None, run_folder))
    tracker.emit(make_start())
    tracker.emit(TrainingProgress(1, {"loss": 4.5}))
    tracker.emit(BundleSaved(make_bundle(run_folder / "averaged"), 1, {}))
    tracker.emit(RunEnd("finished"))
    client, run = tracked_run(run_folder)
    assert train_steps(client, run) == [1]
    assert run.info.artifact_uri.startswith((run_folder.parent / "mlartifacts").as_uri())
    assert {path.name for path in run_folder.parent.iterdir()} == {
        "base",
        "mlflow.db",
        "mlartifacts",
    }
    assert list(run_folder.parent.glob("mlartifacts/models/*/artifacts/bundle/model.safetensors"))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("setting", "name"), [("null", "from-environment"), ("mine", "mine")])
def test_the_experiment_is_that_of_the_setting_or_of_the_environment(
    setting: str, name: str, run_folder: Path, store: str,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for variable, value in (("NAME", "from-environment"), ("ID", "4711")):
        monkeypatch.setenv(f"MLFLOW_EXPERIMENT_{variable}", value)
    config = load_config("base", [f"tracking.uri={store}", f"tracking.experiment={setting}"]).tracking
    tracker = build_tracker(config, run_folder=run_folder, max_updates=1)
    tracker.emit(make_start())
    tracker.emit(RunEnd("finished"))
    client, run = tracked_run(run_folder)
    assert client.get_experiment(run.info.experiment_id).name == name
    ids = [record.getMessage() for record in caplog.records if "MLFLOW_EXPERIMENT_ID" in record.getMessage()]
    assert ids == [f"MLFLOW_EXPERIMENT_ID is not used, the run is in {name}: set MLFLOW_EXPERIMENT_NAME"]


def test_a_server_that_hangs_and_dies_only_causes_warnings(
    server: MlflowServer, run_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = make_tracker(run_folder, server.uri)
    tracker.emit(make_start())
    tracker.emit(TrainingProgress(1, {"loss": 1.0}))
    wait_until(lambda: has_run(run_folder) and not pending(run_folder))

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    server.signal(signal.SIGSTOP)
    for step in range(2, 102):
        tracker.emit(TrainingProgress(step, {"loss": 1.0 / step}))
    wait_until(lambda: "does not accept tracking records" in caplog.text)
    assert pending(run_folder)

    server.kill()
    for step in range(102, 152):
        tracker.emit(TrainingProgress(step, {"loss": 1.0 / step}))
    assert {path.name for path in run_folder.glob("tracking*")} == {"tracking.json", OUTBOX_NAME, CURSOR_NAME}

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(HANG_SECONDS)))
    server.start()
    wait_until(lambda: not pending(run_folder))
    tracker.emit(RunEnd("finished"))
    client, run = tracked_run(run_folder)
    assert train_steps(client, run) == list(range(1, 152))
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in warnings if "does not accept tracking records" in text]) == 1
    assert len([text for text in warnings if "accepts tracking records again" in text]) == 1


def test_dst_track_reports_pending_records_and_sends_them(run_folder: Path, store: str) -> None:
    tracker = make_tracker(run_folder, "http://127.0.0.1:9")  # nobody listens, so every record stays pending
    tracker.emit(make_start())
    tracker.emit(TrainingProgress(1, {"loss": 4.5}))
    tracker.emit(RunEnd("finished"))
    left = pending(run_folder)
    down = run_dst("track", str(run_folder))
    assert (down.returncode, down.stdout) == (1, "")
    wanted = f"dst: error: {run_folder}: 0 records sent, {left} still pending: http://127.0.0.1:9 does not accept them"
    assert down.stderr.startswith(wanted)
    assert down.stderr.count("\n") == 1
    assert pending(run_folder) == left

    TrackingState(store, EXPERIMENT).save(run_folder)
    up = run_dst("track", str(run_folder))
    assert (up.returncode, up.stdout) == (0, f"{run_folder}: {left} records sent to {store}, none pending\n"), up.stderr
    assert run_dst("track", str(run_folder)).stdout == f"{run_folder}: 0 records sent to {store}, none pending\n"
    client, run = tracked_run(run_folder)
    assert run.info.status == "FINISHED"
    assert train_steps(client, run) == [1]


def test_a_refused_record_stays_pending_without_blocking_the_others(
    run_folder: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = make_tracker(run_folder, store)
    tracker.emit(make_start())
    tracker.emit(BundleSaved(run_folder / "gone", 1, {}))
    tracker.emit(TrainingProgress(1, {"loss": 1.0}))
    tracker.emit(RunEnd("finished"))
    client, run = tracked_run(run_folder)
    assert run.info.status == "FINISHED"
    assert train_steps(client, run) == [1]
    assert caplog.text.count("refused 'bundle'") == 1
    assert pending(run_folder) == 1
    with pytest.raises(StorageError, match="1 still pending"):
        send_pending(run_folder)
    make_bundle(run_folder / "gone")
    assert send_pending(run_folder) == 1
    assert client.get_run(run.info.run_id).outputs.model_outputs


def test_resending_after_a_lost_answer_duplicates_nothing(run_folder: Path, store: str, tmp_path: Path) -> None:
    tracker = make_tracker(run_folder, "http://127.0.0.1:9")  # nobody listens, so every record stays pending
    tracker.emit(replace(make_start(), register="en-de"))
    tracker.emit(TrainingProgress(1, {"loss": 1.0}))
    tracker.emit(EvaluationDone("valid", 1, VALID))
    tracker.emit(CheckpointSaved(run_folder / "checkpoints/step-00000001", "1" * 64, 1, 12.5))
    tracker.emit(CheckpointSaved(run_folder / "checkpoints/step-00000002", "2" * 64, 2, None))
    tracker.emit(BundleSaved(make_bundle(run_folder / "averaged"), 2, {"final_test": evaluation_of(bleu=3.0)}))
    tracker.emit(RunEnd("finished"))
    count = pending(run_folder)
    before = TrackingState(store, EXPERIMENT)
    for _ in range(2):
        before.save(run_folder)
        (run_folder / CURSOR_NAME).unlink(missing_ok=True)
        assert send_pending(run_folder) == count

    client, run = tracked_run(run_folder)
    experiment = [run.info.experiment_id]
    assert [found.info.run_id for found in client.search_runs(experiment)] == [run.info.run_id]
    checkpoints = logged_models(client, run, "checkpoint")
    assert [(model.params["step"], model.tags["state"]) for model in checkpoints] == [("1", "deleted"), ("2", "kept")]
    assert len(client.search_logged_models(experiment)) == len(run.outputs.model_outputs) == 3
    assert [version.tags["model_id"] for version in client.search_model_versions()] == [
        bundle_model(client, run).model_id
    ]
    assert train_steps(client, run) == [1]
    assert [m.value for m in client.get_metric_history(run.info.run_id, "valid/bleu")] == [12.5]
    assert len(json.loads(artifact_text(client, run, "samples/valid.json", tmp_path))["data"]) == 1
