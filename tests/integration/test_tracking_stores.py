"""Broken and lost stores."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from mlflow import MlflowClient
from support.processes.launching import run_dst
from support.services.mlflow_runs import (
    has_run,
    make_bundle,
    make_tracker,
    pending,
    tracked_run,
    train_steps,
)
from support.services.mlflow_server import evaluation_of, make_start, wait_until
from support.training.runs import TINY

from dstransformer.errors import DataError, StorageError
from dstransformer.tracking.events import BundleSaved, RunEnd, TrainingProgress
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLog
from dstransformer.tracking.mlflow.location import STATE_NAME, resolve_tracking_uri
from dstransformer.tracking.mlflow.outbox import OUTBOX_NAME, Outbox
from dstransformer.tracking.mlflow.parent_run import close_group, open_group
from dstransformer.tracking.mlflow.tracked_run import register_bundle, send_pending

pytestmark = pytest.mark.usefixtures("patience")


def record_local_run(run_folder: Path) -> None:
    """Record a finished run in a store beside its folder."""
    tracker = make_tracker(run_folder, resolve_tracking_uri(None, run_folder))
    metrics = MetricsLog(run_folder / METRICS_NAME)
    tracker.emit(replace(make_start(), register="en-de"))
    for step in (10, 20):
        for listener in (tracker, metrics):
            listener.emit(TrainingProgress(step, {"loss": 90.0 / step}))
    tracker.emit(BundleSaved(make_bundle(run_folder / "bundle"), 20, {"final_test": evaluation_of(bleu=33.0)}))
    tracker.emit(RunEnd("finished"))
    assert not pending(run_folder)


def test_a_new_store_gets_the_whole_run(run_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    record_local_run(run_folder)
    store = run_folder.parent / "mlflow.db"
    os.truncate(store, 5000)
    with pytest.raises(StorageError, match="does not accept them"):
        register_bundle(run_folder, "other")
    store.rename(store.with_name("broken.db"))
    tracker = make_tracker(run_folder, f"sqlite:///{store}")
    tracker.emit(make_start(resume_step=20))
    tracker.emit(TrainingProgress(30, {"loss": 3.0}))
    tracker.emit(RunEnd("finished"))
    client, run = tracked_run(run_folder)
    assert run.info.status == "FINISHED"
    assert run.data.params["model.d_model"] == "512"
    assert run.data.metrics["final_test/bleu"] == 33.0
    assert train_steps(client, run) == [10, 20, 30]
    assert len(client.search_runs([run.info.experiment_id])) == 1
    assert len(client.search_logged_models([run.info.experiment_id])) == 1
    assert "does not know run" in caplog.text


def test_every_record_arrives_and_nothing_lies_elsewhere_whatever_the_folders_name(tmp_path: Path) -> None:
    name = "q?x p%41 a&token=1#; new\nline ü'\"[a]{b}"
    run_folder = tmp_path / name / "run"
    run_folder.mkdir(parents=True)
    record_local_run(run_folder)
    assert send_pending(run_folder) == 0
    client, run = tracked_run(run_folder)
    assert (run.info.status, run.data.metrics["final_test/bleu"]) == ("FINISHED", 33.0)
    assert train_steps(client, run) == [10, 20]
    assert {artifact.path for artifact in client.list_artifacts(run.info.run_id)} > {"config.yaml"}
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert {artifact.path for artifact in client.list_logged_model_artifacts(model.model_id)} > {"MLmodel", "bundle"}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    made = {path.name for path in run_folder.parent.iterdir() if not path.name.startswith(".")}
    assert made == {"mlartifacts", "mlflow.db", "run"}


def test_dst_track_does_not_call_a_run_sent_whose_records_are_gone(run_folder: Path) -> None:
    tracker = make_tracker(run_folder, "http://127.0.0.1:9")  # nobody listens, so every record stays pending
    tracker.emit(make_start())
    tracker.emit(RunEnd("finished"))
    outbox = run_folder / OUTBOX_NAME
    aside = outbox.rename(run_folder / "aside")
    with pytest.raises(DataError, match="tracking-outbox"):
        send_pending(run_folder)
    outbox.mkdir()
    with pytest.raises(DataError, match=r"tracking-outbox\.jsonl"):
        send_pending(run_folder)
    outbox.rmdir()
    aside.rename(outbox)
    state = (run_folder / STATE_NAME).rename(run_folder / "state.json")
    with pytest.raises(DataError, match=r"tracking\.json"):
        send_pending(run_folder)
    state.write_text(state.read_text().replace("http://127.0.0.1:9", "http://"))
    state.rename(run_folder / STATE_NAME)
    with pytest.raises(DataError, match="tracking_uri is 'http://'"):
        send_pending(run_folder)


def test_a_group_is_one_run_however_often_it_is_opened(
    run_folder: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_one = partial(open_group, experiment="translation", name="table", params={"scale": "toy"}, source="dst table3")
    assert open_one("http://127.0.0.1:9", known=None) is None  # nobody listens
    assert "http://127.0.0.1:9 does not accept" in caplog.text
    known = open_one(store, known=None)
    assert known is not None
    assert open_one(store, known=known) == known
    client = MlflowClient(store)
    assert client.get_run(known).info.status == "RUNNING"
    (run_folder / "table.md").write_text("| base |")
    assert close_group(store, known, note="a note", files=[run_folder / "table.md"], status="finished") is not None
    run = client.get_run(known)
    assert (run.info.status, run.data.params, run.data.tags["mlflow.note.content"]) == (
        "FINISHED", {"scale": "toy"}, "a note"
    )  # fmt: skip
    assert [file.path for file in client.list_artifacts(known)] == ["table.md"]
    client.delete_run(known)
    assert open_one(store, known=known) not in (known, None)


def test_a_run_folder_that_cannot_be_read_for_a_while_is_not_the_fault_of_the_store(
    run_folder: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = make_tracker(run_folder, store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "has_pending", failing_disk)
        tracker.emit(make_start())
        wait_until(lambda: "cannot read the tracking records" in caplog.text)
    wait_until(lambda: "are read again" in caplog.text)
    assert has_run(run_folder)
    outbox = run_folder / OUTBOX_NAME
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    tracker.emit(RunEnd("finished"))
    assert warnings == [
        f"cannot read the tracking records in {outbox}: Input/output error; training continues, and they are sent "
        "later",
        f"the tracking records in {outbox} are read again",
    ]


def failing_disk(_: Outbox) -> bool:
    raise OSError(errno.EIO, "Input/output error")


def test_a_password_is_in_no_file_and_no_message(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "one"
    updates = [each for each in TINY if not each.startswith("tracking.")]
    said = ""
    for password, number in (("s3cret", 2), ("s3cret2", 4)):  # the second one resumes
        address = f"tracking.uri=http://me:{password}@127.0.0.1:9"  # nobody listens
        command = ["train", "toy", "--corpus", str(toy_corpus), "--run", str(run), "--set", *updates, address]
        done = run_dst(*command, f"training.max_updates={number}")
        assert done.returncode == 0, done.stderr
        said += done.stdout + done.stderr
    unable = run_dst("track", str(run))
    assert unable.returncode == 1
    assert "the password of http://me:***@127.0.0.1:9 is in no file: set MLFLOW_TRACKING_URI" in unable.stderr
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret2@127.0.0.1:9")
    sent = run_dst("track", str(run))
    assert sent.returncode == 1
    assert "Connection refused" in sent.stderr
    said += unable.stdout + unable.stderr + sent.stdout + sent.stderr
    exported = run_dst("export", "hf", str(run), str(tmp_path / "hf"))
    assert exported.returncode == 0, exported.stderr
    assert "http://me:***@127.0.0.1:9" in said
    assert "s3cret" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()] == []
    assert "http://me:***@127.0.0.1:9" in (run / "config.yaml").read_text()
