from __future__ import annotations

import errno
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from support.faults.disk import full_disk
from support.processes.terminal import visible
from support.services.mlflow_server import evaluation_of, make_manifest, make_start

from dstransformer.config import load_config
from dstransformer.errors import ConfigError, DataError, UserError
from dstransformer.evaluation import Sample
from dstransformer.exchange.pyfunc import BundleModel
from dstransformer.io.files import hold_lock
from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.events import (
    BundleSaved,
    CheckpointSaved,
    CostTotal,
    EvaluationDone,
    EvaluationProgress,
    Event,
    FanOut,
    Message,
    RunEnd,
    RunStart,
    SaveFailed,
    Tracker,
    TrainingProgress,
    UpdateDone,
)
from dstransformer.tracking.metrics_log import MetricsLog
from dstransformer.tracking.mlflow.location import TrackingState, resolve_tracking_uri
from dstransformer.tracking.mlflow.page import manifest_digest
from dstransformer.tracking.mlflow.records import flatten
from dstransformer.tracking.mlflow.tracked_run import send_pending
from dstransformer.training.build import build_tracker


def drive(tracker: Tracker, folder: Path) -> None:
    """Emit one run."""
    tracker.emit(make_start())
    tracker.emit(TrainingProgress(1, {"loss": 2.0}))
    tracker.emit(EvaluationDone("valid", 1, evaluation_of(bleu=1.0, signature="s", samples=[Sample("a", "b", "c")])))
    tracker.emit(CheckpointSaved(folder / "checkpoints/step-00000001", "0" * 64, 1, None))
    tracker.emit(BundleSaved(folder / "averaged", 1, {"final_test": evaluation_of(bleu=1.0, signature="s")}))
    tracker.emit(RunEnd("finished"))


def test_rank_0_without_mlflow_writes_metrics_and_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = load_config("base", ["tracking.enabled=false"]).tracking
    drive(build_tracker(config, run_folder=tmp_path, max_updates=10), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    out, err = capfd.readouterr()
    assert out == ""
    assert "update 1/10" in err


class Broken(Tracker):
    """A tracker that fails at one kind of event, and records its events."""

    def __init__(self, at: type[Event]) -> None:
        self.at = at
        self.name = f"tracker {at.__name__}"
        self.calls: list[object] = []

    def emit(self, event: Event) -> None:
        match event:
            case RunStart():
                self.calls.append(event.run_name)
            case TrainingProgress(step, metrics):
                self.calls.append((step, metrics["loss"]))
        if isinstance(event, self.at):
            raise OSError(errno.ENOSPC, "no space left on device", "metrics.jsonl")


def test_a_failing_tracker_is_reported_once_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, unstarted = Broken(TrainingProgress), Broken(RunStart)
    tracker = FanOut([unstarted, broken, MetricsLog(tmp_path / "metrics.jsonl")])
    tracker.emit(make_start())
    for step in range(3):
        tracker.emit(TrainingProgress(step, {"loss": 1.0}))
    assert broken.calls == ["base-seed1", (0, 1.0), (1, 1.0), (2, 1.0)]
    assert unstarted.calls == ["base-seed1"]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "tracker RunStart failed, training continues without it: metrics.jsonl: no space left on device",
        "tracker TrainingProgress failed, training continues, and later events still go to it: metrics.jsonl: no "
        "space left on device",
    ]


def test_lines_of_the_metrics_wait_for_a_disk_that_refuses_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.emit(make_start())
    log.emit(TrainingProgress(1, {"loss": 1.0}))
    with full_disk():
        log.emit(TrainingProgress(2, {"loss": 2.0}))
    (tmp_path / "metrics.jsonl").rename(tmp_path / "elsewhere")  # as of a disk that is not mounted
    log.emit(SaveFailed(3, "checkpoint", "no space"))
    assert not (tmp_path / "metrics.jsonl").exists(), "it is not begun anew where the disk was"
    (tmp_path / "elsewhere").rename(tmp_path / "metrics.jsonl")
    log.emit(TrainingProgress(4, {"loss": 4.0}))
    log.emit(RunEnd("finished"))
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 1), ("train", 2), ("unsaved", 3), ("train", 4),
    ]  # fmt: skip
    assert [record.getMessage().partition("metrics.jsonl")[2] for record in caplog.records] == [
        ": File too large; training continues, and its lines wait for the disk",
        " is written again, with the lines that waited",
    ]


def read_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_metrics_log_writes_one_object_per_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.emit(make_start())
    log.emit(TrainingProgress(5, {"loss": float("inf"), "lr": 0.5, "src_tokens": 3}))
    log.emit(EvaluationDone("valid", 5, evaluation_of(loss=1.5, bleu=20.0, signature="tok:13a")))
    log.emit(CheckpointSaved(Path("checkpoints/step-00000005"), "f" * 64, 5, 20.0))
    log.emit(CostTotal(5, {"flops": 1.5e15, "device_hours": 0.25}))
    train, valid, checkpoint, cost = read_lines(path)
    assert train == {"kind": "train", "step": 5, "time": train["time"], "loss": None, "lr": 0.5, "src_tokens": 3}
    assert (valid["kind"], valid["bleu"], valid["bleu_signature"]) == ("valid", 20.0, "tok:13a")
    assert (checkpoint["kind"], checkpoint["path"]) == ("checkpoint", "checkpoints/step-00000005")
    assert cost == {"kind": "cost", "step": 5, "time": cost["time"], "flops": 1.5e15, "device_hours": 0.25}


def test_a_resumed_metrics_log_has_every_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsLog(path)
    first.emit(make_start())
    for step in (10, 20, 30):
        first.emit(TrainingProgress(step, {"loss": 1.0}))
    with path.open("a") as file:
        file.write('{"kind": "train", "step": 4')  # the process died while writing
    second = MetricsLog(path)
    second.emit(make_start(resume_step=20))
    second.emit(TrainingProgress(30, {"loss": 0.5}))
    assert [(line["step"], line["loss"]) for line in read_lines(path)] == [(10, 1.0), (20, 1.0), (30, 0.5)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_fresh_run_starts_a_new_metrics_log(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "valid", "step": 0}\n')
    MetricsLog(path).emit(make_start())
    assert path.read_text() == ""


def test_progress_without_a_terminal_is_plain_lines() -> None:
    text = io.StringIO()
    progress = ConsoleProgress(200, Console(file=text, width=40))
    progress.emit(make_start(resume_step=100))
    progress.emit(
        TrainingProgress(150, {"loss": 3.25, "lr": 7e-4, "tokens_per_second": 12345.6, "grad_norm": 1.0, "epoch": 2.0})
    )
    sample = Sample("[bold]A dog.", "Ein Hund.", "Hund.")
    progress.emit(EvaluationDone("valid", 150, evaluation_of(loss=3.5, bleu=21.456, samples=[sample])))
    progress.emit(TrainingProgress(175, {"loss": 3.0, "tokens_per_second": 9.0, "memory_gib": 41.25, "mfu": 0.3816}))
    progress.emit(CostTotal(175, {"flops": 1e15, "overall_tokens_per_second": 2345.6}))
    progress.emit(CheckpointSaved(Path("checkpoints/step-00000175"), "0" * 64, 175, 21.456))
    progress.emit(RunEnd("killed"))
    assert text.getvalue().splitlines() == [
        "resumed at update 100",
        "update 150/200 (75.0%)  epoch 2  loss 3.2500  lr 7.00e-04  12,346 tokens/s in updates  elapsed 0:00:00  "
        "ETA 0:00:00",
        "update 150  valid  loss 3.5000  bleu 21.46",
        "  source       [bold]A dog.",
        "  reference    Ein Hund.",
        "  translation  Hund.",
        "update 175/200 (87.5%)  loss 3.0000  9 tokens/s in updates  GPU memory 41.2 GiB  MFU 38.2%  BLEU 21.46 @150  "
        "elapsed 0:00:00  ETA 0:00:00",
        "update 175  checkpoint checkpoints/step-00000175  score 21.46",
        "training interrupted after 0:00:00, 2,346 tokens/s with validation and checkpoints",
    ]


def test_the_first_line_comes_before_the_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    text, clock = io.StringIO(), 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    progress = ConsoleProgress(200, Console(file=text, width=40))
    progress.emit(make_start())
    for step in range(1, 7):
        clock += 4.0
        progress.emit(UpdateDone(step, 1200))
    assert text.getvalue() == "update 3/200 (1.5%)  300 tokens/s  elapsed 0:00:12  ETA 0:13:08\n"


def test_an_evaluation_shows_its_progress_and_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    text, screen, clock = io.StringIO(), io.StringIO(), 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    both = FanOut([
        ConsoleProgress(200, Console(file=text, width=40)),
        drawn := ConsoleProgress(200, Console(file=screen, force_terminal=True, width=80)),
    ])  # fmt: skip
    both.emit(make_start())
    for done in (0, 250, 1000):
        both.emit(EvaluationProgress("the average on validation", done, 3000))
        clock += 8.0
    line = "evaluating the average on validation  1,000/3,000 sentences  ETA 0:00:32"
    assert text.getvalue().splitlines() == [line]
    assert str(drawn._draw()) == line
    both.emit(BundleSaved(Path("bundle"), 200, {}))
    assert "evaluating" not in str(drawn._draw())


def test_the_final_bundle_is_reported_and_its_scores_are_logged(tmp_path: Path) -> None:
    text, path = io.StringIO(), tmp_path / "metrics.jsonl"
    tracker = FanOut([ConsoleProgress(200, Console(file=text, width=40)), MetricsLog(path)])
    tracker.emit(Message("1.0 epochs"))
    scores = evaluation_of(loss=1.5, bleu_first_500=33.0, signature="nrefs:1")
    tracker.emit(BundleSaved(tmp_path / "bundle", 200, {"final_validation": scores}))
    assert text.getvalue().splitlines() == [
        "1.0 epochs",
        f"update 200  bundle {tmp_path / 'bundle'}",
    ]
    (line,) = read_lines(path)
    assert (line["kind"], line["step"], line["bleu_first_500"]) == ("final_validation", 200, 33.0)
    assert line["bleu_first_500_signature"] == "nrefs:1"
    assert (scores.main.name, scores.main.value) == ("bleu_first_500", 33.0)


def test_on_a_terminal_the_line_moves_with_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    text, clock = io.StringIO(), 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    progress = ConsoleProgress(200, Console(file=text, force_terminal=True, width=120))

    def line_after(event: Event) -> str:
        progress.emit(event)
        progress._live.refresh()
        return visible(text.getvalue())[-1]

    progress.emit(make_start(resume_step=100))
    clock += 2.0
    early = line_after(UpdateDone(101, 1200))
    assert re.fullmatch(r"update 101/200  \S+  600 tokens/s  elapsed 0:00:02  ETA 0:03:18", early)
    line_after(TrainingProgress(150, {"loss": 3.25, "epoch": 2.0}))
    clock += 49.0
    expected = r"update 151/200  \S+  epoch 2  loss 3.2500  elapsed 0:00:51  ETA 0:00:49"
    assert re.fullmatch(expected, line_after(UpdateDone(151, 1200)))
    progress.emit(RunEnd("finished"))


def test_flatten_names_nested_values_with_dots() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": "text"}, "e": [1, "x"], "f": None, "g": True}) == {
        "a.b.c": "1",
        "a.d": "text",
        "e": '[1, "x"]',
        "f": "null",
        "g": "true",
    }


def test_the_digest_depends_on_the_shards_only() -> None:
    digest = manifest_digest(make_manifest())
    assert len(digest) == 32
    assert manifest_digest(make_manifest(command="dst-prep build --workers 9")) == digest
    assert manifest_digest(make_manifest(shard_hash="e" * 64)) != digest


@pytest.mark.parametrize(
    ("configured", "environment", "expected"),
    [
        ("http://tracker:5000", "http://other:5000", "http://tracker:5000"),
        (None, "http://other:5000", "http://other:5000"),
        (None, None, "sqlite:////data/runs/mlflow.db"),
        ("postgresql+psycopg2://host/db", None, "postgresql+psycopg2://host/db"),
        ("sqlite:////data/my.db", None, "sqlite:////data/my.db"),
        (None, "sqlite:///my.db", "sqlite:////my.db"),
        ("sqlite+pysqlite:///../my.db?timeout=3", None, "sqlite+pysqlite:////../my.db?timeout=3"),
    ],
)
def test_the_store_is_configured_or_from_the_environment_or_the_default(
    monkeypatch: pytest.MonkeyPatch, configured: str | None, environment: str | None, expected: str
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if environment is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", environment)
    assert resolve_tracking_uri(configured, Path("/data/runs/base")) == expected


def test_an_invalid_store_address_is_an_error(tmp_path: Path) -> None:
    for uri in ("./mlruns", "http://", "https:///path", "http://[::1"):
        config = load_config("base", [f"tracking.uri='{uri}'"]).tracking
        with pytest.raises(ConfigError, match=rf"tracking\.uri is '{re.escape(uri)}'"):
            build_tracker(config, run_folder=tmp_path, max_updates=1)


def test_a_store_that_is_a_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow.db").mkdir()
    with pytest.raises(ConfigError, match=f"{tmp_path / 'mlflow.db'}"):
        resolve_tracking_uri(None, tmp_path / "run")


@pytest.mark.parametrize("text", ['{"tracking_uri": ', "[]", "{}", '{"tracking_uri": "./runs", "experiment": "e"}'])
def test_a_damaged_tracking_state_is_named(tmp_path: Path, text: str) -> None:
    assert TrackingState.load(tmp_path) is None
    (tmp_path / "tracking.json").write_text(text)
    with pytest.raises(DataError, match=r"tracking\.json is damaged") as caught:
        TrackingState.load(tmp_path)
    assert "__init__" not in str(caught.value)
    (tmp_path / "tracking.json").unlink()
    (tmp_path / "tracking.json").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*tracking\.json"):
        TrackingState.load(tmp_path)


def test_a_store_that_moved_with_its_run_is_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "elsewhere").mkdir()
    state = TrackingState(f"sqlite:///{tmp_path}/elsewhere/mlflow.db", "e", "1")
    state.save(run)
    assert TrackingState.load(run) == state  # a new store is created there
    beside = replace(state, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "elsewhere").rmdir()
    assert TrackingState.load(run) == beside  # and here if that folder is gone too
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mlflow.db").touch()
    assert TrackingState.load(run) == beside


class Shouting:
    def translate(self, sentences: list[str], /) -> list[str]:
        return [sentence.upper() for sentence in sentences]


@pytest.mark.parametrize("model_input", [["a dog", "a cat"], pd.DataFrame(["a dog", "a cat"])])
def test_a_logged_bundle_accepts_a_list_or_a_data_frame(model_input: list[str] | pd.DataFrame) -> None:
    assert BundleModel(Shouting()).predict(model_input) == ["A DOG", "A CAT"]


def test_a_logged_bundle_names_what_is_no_text() -> None:
    assert BundleModel(Shouting()).predict("a dog") == ["A DOG"]
    with pytest.raises(TypeError, match=r"input 2 is (nan|None)"):
        BundleModel(Shouting()).predict(pd.DataFrame(["a dog", None], dtype="str"))


def test_records_of_a_run_in_training_are_left_to_it(tmp_path: Path) -> None:
    TrackingState(f"sqlite:///{tmp_path}/mlflow.db", "translation", "0123").save(tmp_path)
    with (
        hold_lock(tmp_path / ".lock", "busy", keep=True),
        pytest.raises(
            UserError,
            match=r"process \d+ on",
        ),
    ):
        send_pending(tmp_path)
