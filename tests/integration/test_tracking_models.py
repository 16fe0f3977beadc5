"""Checkpoints and bundles as models in MLflow: ranking, registering, serving; data sets; and runs that were killed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from support.processes.forks import environment
from support.processes.launching import forked, free_port, run_command, run_dst, started, wait_until
from support.services.mlflow_runs import (
    bundle_model,
    has_run,
    logged_models,
    make_tracker,
    pending,
    tracked_run,
)
from support.services.mlflow_server import evaluation_of, make_start
from support.training.runs import train_options

from dstransformer.decoding import Translator
from dstransformer.errors import DataError
from dstransformer.tracking.events import CheckpointSaved, EvaluationDone, RunEnd
from dstransformer.tracking.mlflow.tracked_run import register_bundle, send_pending

pytestmark = pytest.mark.usefixtures("patience")

#: A checkpoint every second update, of which the last and the two best stay; a validation every fourth.
OFTEN = ["checkpoint.every_updates=2", "checkpoint.keep_last=1", "checkpoint.keep_best=2", "checkpoint.average_last=1"]
OFTEN += ["validation.every=4"]

#: Loads a model where only its own code and the packages of the index are, and prints what it imported.
LOAD = """
import json, sys
import mlflow.pyfunc
print(json.dumps(mlflow.pyfunc.load_model(sys.argv[1]).predict(["The old man reads a book."])))
import dstransformer
print(dstransformer.__file__)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture(scope="module")
def run(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve updates that registered its bundle."""
    folder = tmp_path_factory.mktemp("runs") / "toy"
    command = train_options(toy_corpus, folder, *OFTEN)
    done = run_dst(*command, "--register", "toy", extra={"MLFLOW_TRACKING_URI": ""})
    assert done.returncode == 0, done.stderr
    assert "MLflow: toy version 1: BLEU " in done.stderr
    return folder


def elsewhere(run: Path) -> dict[str, str]:
    """An environment in which this package is not on the path, and MLflow knows the store of the run."""
    variables = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    return variables | {"MLFLOW_TRACKING_URI": f"sqlite:///{run.parent / 'mlflow.db'}"}


def valid_bleu(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["bleu_first_6"] for line in lines if line["kind"] == "valid"}


@pytest.mark.slow
class TestARun:
    def test_mlflow_ranks_its_checkpoints(self, run: Path) -> None:
        client, tracked = tracked_run(run)
        scores = valid_bleu(run)
        assert sorted(scores) == [4, 8, 12]
        order = [{"field_name": "metrics.valid/bleu_first_6", "ascending": False}]
        ranked = client.search_logged_models([tracked.info.experiment_id], "model_type = 'checkpoint'", order_by=order)
        assert [int(model.params["step"]) for model in ranked[:3]] == sorted(scores, key=scores.__getitem__)[::-1]
        assert sorted(int(model.params["step"]) for model in ranked) == [2, 4, 6, 8, 10, 12]
        found = {
            int(model.params["step"]): metric.value
            for model in ranked
            for metric in model.metrics or ()
            if metric.key == "valid/bleu_first_6"
        }
        assert found == scores
        history = client.get_metric_history(tracked.info.run_id, "valid/bleu_first_6")
        assert [metric.step for metric in history] == [4, 8, 12], "a score of a checkpoint is no second point"
        datasets = {entry.dataset.name: entry.dataset.digest for entry in tracked.inputs.dataset_inputs}
        scored = {(m.key, m.dataset_name, m.dataset_digest) for model in ranked for m in model.metrics or ()}
        assert {(name, digest) for _, name, digest in scored} <= set(datasets.items())
        names = {key: name for key, name, _ in scored}
        assert names["valid/bleu_first_6"] == f"{names['train/loss']} validation"
        losses = [metric.step for metric in client.get_metric_history(tracked.info.run_id, "train/loss")]
        assert losses == sorted(set(losses)), "a loss of a checkpoint is no second point"

    def test_mlflow_knows_which_checkpoints_exist(self, run: Path) -> None:
        client, tracked = tracked_run(run)
        checkpoints = logged_models(client, tracked, "checkpoint")
        kept = {model.tags["path"] for model in checkpoints if model.tags["state"] == "kept"}
        assert kept == {str(path) for path in (run / "checkpoints").glob("step-*")}
        assert {model.tags["state"] for model in checkpoints} == {"kept", "deleted"}
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        written = {line["step"]: line["sha256"] for line in lines if line["kind"] == "checkpoint"}
        assert {int(model.params["step"]): model.tags["sha256"] for model in checkpoints} == written

    def test_its_model_brings_code_and_requirements(self, run: Path, tmp_path: Path) -> None:
        client, tracked = tracked_run(run)
        model = bundle_model(client, tracked)
        files = Path(model.artifact_location.removeprefix("file://"))
        pinned = dict(line.split("==") for line in (files / "requirements.txt").read_text().splitlines())
        assert {"torch", "sentencepiece", "mlflow"} <= pinned.keys()
        assert "+" not in pinned["torch"]
        command = [sys.executable, "-c", LOAD, f"models:/{model.model_id}"]
        done = run_command(command, env=elsewhere(run), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        translated, module, imported = done.stdout.splitlines()[-3:]
        assert json.loads(translated) == Translator.load(run / "bundle").translate(["The old man reads a book."])
        assert Path(module) == files / "code" / "dstransformer" / "__init__.py"
        assert not {"deepspeed", "datasets", "sacrebleu", "rich"} & set(json.loads(imported))

    def test_it_can_be_registered_again_without_a_second_version(self, run: Path) -> None:
        client, tracked = tracked_run(run)
        model = bundle_model(client, tracked)
        version = client.get_model_version("toy", "1")
        assert version.tags["model_id"] == model.model_id
        assert "dst translate" in version.description
        for _ in range(2):
            done = run_dst("track", str(run), "--register", "other")
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("other version 1: BLEU ")
        assert len(client.search_model_versions("name = 'other'")) == 1
        refused = run_dst("track", str(run), "--register", "a/b")
        assert refused.returncode == 2
        assert "'a/b' cannot name a registered model" in refused.stderr

    def test_a_server_answers_with_translations(self, run: Path, tmp_path: Path) -> None:
        sentences = ["The old man reads a book.", "", "A small dog."]
        port = free_port()
        command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/toy/latest"]
        command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        with (
            (tmp_path / "log").open("wb") as log,
            started(command, elsewhere(run), cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT) as server,
        ):
            wait_until(lambda: is_up(port, server), lambda: (tmp_path / "log").read_text()[-3000:])
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/invocations",
                json.dumps({"inputs": sentences}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                predictions = json.loads(answer.read())["predictions"]
            request.data = b'{"inputs": ["A dog."'
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(request, timeout=120)
        assert predictions == Translator.load(run / "bundle").translate(sentences)


def is_up(port: int, server: subprocess.Popen[str]) -> bool:
    assert server.poll() is None, "the server has ended"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_only_a_run_with_a_bundle_can_be_registered(run_folder: Path, store: str) -> None:
    tracker = make_tracker(run_folder, store)
    tracker.emit(make_start())
    tracker.emit(RunEnd("killed"))
    with pytest.raises(DataError, match="bundle"):
        register_bundle(run_folder, "en-de")
    assert not pending(run_folder)


def test_scores_belong_to_the_weights_that_were_scored(run_folder: Path, store: str) -> None:
    """Validation after the checkpoint, a checkpoint written anew with its score, and an abandoned continuation."""

    def save(step: int, sha256: str) -> None:
        path = run_folder / "checkpoints" / f"step-{step:08d}"
        path.mkdir(parents=True, exist_ok=True)
        tracker.emit(CheckpointSaved(path, sha256 * 64, step, None))

    def bleu(step: int, value: float) -> None:
        tracker.emit(EvaluationDone("valid", step, evaluation_of(bleu=value, loss=math.nan if step == 30 else 1.0)))

    tracker = make_tracker(run_folder, store)
    tracker.emit(make_start())
    bleu(10, 1.0)
    save(20, "a")
    bleu(20, 2.0)
    save(30, "b")
    bleu(30, 3.0)
    save(30, "c")  # the same weights, with their score
    save(40, "d")
    tracker.emit(RunEnd("killed"))

    (run_folder / "checkpoints" / "step-00000040").rmdir()
    tracker = make_tracker(run_folder, store)
    tracker.emit(make_start(resume_step=30))
    client, run = tracked_run(run_folder)
    wait_until(lambda: [*states(client, run)] == [(20, "a", "kept"), (30, "c", "kept"), (40, "d", "deleted")])
    bleu(40, 4.0)
    save(40, "e")
    tracker.emit(RunEnd("finished"))

    assert [*states(client, run)] == [(20, "a", "kept"), (30, "c", "kept"), (40, "d", "deleted"), (40, "e", "kept")]
    scores = {
        model.tags["sha256"][0]: [metric.value for metric in model.metrics or () if metric.key == "valid/bleu"]
        for model in logged_models(client, run, "checkpoint")
    }
    assert scores == {"a": [2.0], "c": [3.0], "d": [], "e": [4.0]}


def states(client: MlflowClient, run: Run) -> Iterator[tuple[int, str, str]]:
    for model in logged_models(client, run, "checkpoint"):
        yield int(model.params["step"]), model.tags["sha256"][0], model.tags["state"]


#: Tracks a run until it is killed.
HANG = """
import sys, time
from pathlib import Path
from support.services.mlflow_runs import make_tracker
from support.services.mlflow_server import make_start
from dstransformer.tracking.events import TrainingProgress
tracker = make_tracker(Path(sys.argv[1]), sys.argv[2])
tracker.emit(make_start())
tracker.emit(TrainingProgress(1, {"loss": 1.0}))
time.sleep(1000)
"""


def kill_a_run(run_folder: Path, store: str, tmp_path: Path) -> None:
    """Track a run in a process of its own, and kill it once MLflow has its records."""
    program = tmp_path / "hang.py"
    program.write_text(HANG)
    with forked(
        [str(program), str(run_folder), store], environment({"PYTHONPATH": os.pathsep.join(sys.path)})
    ) as process:
        wait_until(
            lambda: (run_folder / "tracking.json").exists() and has_run(run_folder) and not pending(run_folder),
            running=[process],
        )
        os.kill(process.pid, signal.SIGKILL)


def test_a_killed_run_is_failed_until_it_is_resumed(run_folder: Path, store: str, tmp_path: Path) -> None:
    kill_a_run(run_folder, store, tmp_path)
    client, run = tracked_run(run_folder)
    assert run.info.status == "RUNNING"
    assert send_pending(run_folder) == 1
    assert send_pending(run_folder) == 0
    failed = client.get_run(run.info.run_id)
    assert failed.info.status == "FAILED"
    assert failed.info.start_time <= failed.info.end_time
    assert failed.data.tags["mlflow.note.content"].startswith("Ended without a report")

    tracker = make_tracker(run_folder, store)
    tracker.emit(make_start(resume_step=1))
    wait_until(lambda: client.get_run(run.info.run_id).info.status == "RUNNING")
    tracker.emit(RunEnd("finished"))
    assert client.get_run(run.info.run_id).info.status == "FINISHED"
    assert send_pending(run_folder) == 0
    assert client.get_run(run.info.run_id).info.status == "FINISHED"


def test_a_run_killed_before_its_first_checkpoint_is_failed_by_the_next(
    run_folder: Path, store: str, tmp_path: Path
) -> None:
    kill_a_run(run_folder, store, tmp_path)
    client, killed = tracked_run(run_folder)
    tracker = make_tracker(run_folder, store)
    tracker.emit(make_start())
    tracker.emit(RunEnd("finished"))
    assert tracked_run(run_folder)[1].info.run_id != killed.info.run_id
    assert client.get_run(killed.info.run_id).info.status == "FAILED"
