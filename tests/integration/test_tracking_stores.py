"""Broken stores, and runs that move."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.launching import run_dst
from support.mlflow_runs import artifact_text, make_bundle, make_tracker, pending, tracked_run, train_steps
from support.tracking import evaluation_of, make_start

from dstransformer.errors import DataError, StorageError
from dstransformer.tracking import (
    METRICS_NAME,
    MetricsLog,
    resolve_tracking_uri,
    send_pending,
)
from dstransformer.tracking.location import STATE_NAME
from dstransformer.tracking.spool import FOLDER_NAME, SENT_NAME

pytestmark = pytest.mark.usefixtures("patience")


def record_local_run(run_folder: Path) -> None:
    """Record a finished run in a store beside its folder."""
    tracker = make_tracker(run_folder, resolve_tracking_uri(None, run_folder))
    metrics = MetricsLog(run_folder / METRICS_NAME)
    tracker.start(make_start())
    for step in (10, 20):
        for listener in (tracker, metrics):
            listener.log_train(step, {"loss": 90.0 / step})
    tracker.log_bundle(make_bundle(run_folder / "bundle"), 20, {"final_test": evaluation_of(bleu=33.0)})
    tracker.finish("finished")
    assert not pending(run_folder)


def test_a_new_store_replaces_a_broken_one_and_gets_the_whole_run(
    run_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record_local_run(run_folder)
    store = run_folder.parent / "mlflow.db"
    os.truncate(store, 5000)
    os.utime(store, (0, 0))  # nobody is writing
    tracker = make_tracker(run_folder, f"sqlite:///{store}")
    tracker.start(make_start(resume_step=20))
    tracker.log_train(30, {"loss": 3.0})
    tracker.finish("finished")
    client, run = tracked_run(run_folder)
    assert run.info.status == "FINISHED"
    assert run.data.params["model.d_model"] == "512"
    assert run.data.metrics["final_test/bleu"] == 33.0
    assert train_steps(client, run) == [10, 20, 30]
    assert len(client.search_runs([run.info.experiment_id])) == 1
    assert len(client.search_logged_models([run.info.experiment_id])) == 1
    assert list(store.parent.glob("mlflow.db.broken-*"))
    assert f"the MLflow store {store} is broken" in caplog.text
    assert "does not know run" in caplog.text


def test_a_moved_folder_of_runs_keeps_its_artifacts(run_folder: Path, tmp_path: Path) -> None:
    record_local_run(run_folder)
    moved = run_folder.parent.rename(tmp_path / "elsewhere") / run_folder.name
    done = run_dst("track", str(moved))
    store = f"sqlite:///{tmp_path / 'elsewhere' / 'mlflow.db'}"
    assert (done.returncode, done.stdout) == (0, f"{moved}: 0 records sent to {store}, none pending\n"), done.stderr
    assert ": updated " in done.stderr
    assert done.stderr.count("\n") == 1
    client, run = tracked_run(moved)
    assert run.info.artifact_uri.startswith((tmp_path / "elsewhere" / "mlartifacts").as_uri())
    assert "d_model: 512" in artifact_text(client, run, "config.yaml", tmp_path)
    model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
    here = Path(model.artifact_location.removeprefix("file://"))  # MLflow remembers a location for the whole process
    assert here.is_relative_to(tmp_path / "elsewhere")
    assert {path.name for path in here.iterdir()} == {"MLmodel", "bundle"}
    assert not run_folder.parent.exists()


def test_dst_track_does_not_call_a_run_sent_whose_records_are_gone(run_folder: Path) -> None:
    tracker = make_tracker(run_folder, "http://127.0.0.1:9")  # nobody listens, so every record stays pending
    tracker.start(make_start())
    tracker.finish("finished")
    spool = run_folder / FOLDER_NAME
    aside = spool.rename(run_folder / "aside")
    with pytest.raises(DataError, match=r"has never received this run, and no records are pending in tracking-pending"):
        send_pending(run_folder)
    spool.write_text("a file")
    with pytest.raises(DataError, match=r"tracking-pending is not a folder, .*: move it away"):
        send_pending(run_folder)
    spool.unlink()
    aside.rename(spool)
    state = (run_folder / STATE_NAME).rename(run_folder / "state.json")
    with pytest.raises(DataError, match=r"tracking\.json, which names the tracking server, is missing: restore it"):
        send_pending(run_folder)
    state.write_text(state.read_text().replace("http://127.0.0.1:9", "http://"))
    state.rename(run_folder / STATE_NAME)
    with pytest.raises(DataError, match=r"is damaged \(tracking_uri is 'http://'\)"):
        send_pending(run_folder)


def test_dst_track_says_that_it_creates_a_store_and_that_it_cannot_create_a_run(
    run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record_local_run(run_folder)
    store = tmp_path / "another" / "mlflow.db"
    store.parent.mkdir()
    state = json.loads((run_folder / STATE_NAME).read_text())
    (run_folder / STATE_NAME).write_text(json.dumps(state | {"tracking_uri": f"sqlite:///{store}"}))
    (run_folder.parent / "mlflow.db").rename(tmp_path / "kept.db")
    assert send_pending(run_folder) > 0
    assert f"the tracking store {store} does not exist: creating it" in caplog.text
    store.rename(tmp_path / "moved.db")
    (run_folder / SENT_NAME).unlink()
    with pytest.raises(DataError, match=r"does not know run .*, and no records are left to create it again: restore"):
        send_pending(run_folder)


def test_dst_track_blames_a_bad_setting_and_not_the_server(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = make_tracker(run_folder, "http://127.0.0.1:9")  # nobody listens, so every record stays pending
    tracker.start(make_start())
    tracker.finish("finished")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "banana")
    with pytest.raises(StorageError) as refused:
        send_pending(run_folder)
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" in str(refused.value)
    assert "try again" not in str(refused.value)
