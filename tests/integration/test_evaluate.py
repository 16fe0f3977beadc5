"""``dst evaluate`` on a real run: into its MLflow run, and beside the training."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from support.processes.forks import environment
from support.processes.launching import finish, forked, run_dst, wait_until
from support.services.mlflow_runs import send_rest, tracked_run
from support.services.serving import save_small_bundle
from support.training.runs import train_options

from dstransformer.cli import main
from dstransformer.data import Corpus


@pytest.fixture(scope="module")
def texts(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options for a test set of six sentences."""
    folder = tmp_path_factory.mktemp("text")
    split = Corpus.open(toy_corpus).split("test")
    for name, lines in (("held.en", split.src_texts()), ("held.de", split.tgt_texts())):
        (folder / name).write_text("".join(f"{line}\n" for line in lines[:6]), encoding="utf-8")
    return ["--src", str(folder / "held.en"), "--ref", str(folder / "held.de")]


def results(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_scores_go_into_the_mlflow_run(plain_copy: Path, plain_run: Path, texts: list[str], tmp_path: Path) -> None:
    done = run_dst("evaluate", str(plain_copy / "bundle"), *texts, "--beam", "3", "--track", "--json")
    assert done.returncode == 0, done.stderr
    assert "MLflow" not in done.stderr
    told = json.loads(done.stdout)
    client = MlflowClient(f"sqlite:///{plain_copy.parent / 'mlflow.db'}")
    run = client.get_run(json.loads((plain_copy / "tracking.json").read_text())["run_id"])
    assert run.data.metrics["evaluate/held/bleu"] == pytest.approx(told["metrics"]["bleu"])
    (point,) = client.get_metric_history(run.info.run_id, "evaluate/held/ter")
    assert (point.step, point.value) == (told["step"], pytest.approx(told["metrics"]["ter"]))
    digests = {entry.dataset.name: entry.dataset.digest for entry in run.inputs.dataset_inputs}
    assert digests["held"] == told["test_set"]["digest"]
    (file,) = client.list_artifacts(run.info.run_id, "evaluations")
    stored = json.loads(Path(client.download_artifacts(run.info.run_id, file.path, str(tmp_path))).read_text())
    assert stored == told
    assert (stored["beam_size"], stored["length_penalty"]) == (3, 0.6)
    # The model's page in MLflow shows them too, with the test set.
    models = [client.get_logged_model(output.model_id) for output in run.outputs.model_outputs]
    (model,) = [model for model in models if model.tags.get("path") == "bundle"]
    (bleu,) = [metric for metric in model.metrics if metric.key == "evaluate/held/bleu"]
    assert (bleu.dataset_name, bleu.dataset_digest) == ("held", told["test_set"]["digest"])
    # An average of the run elsewhere belongs to it too.
    average = run_dst("average", str(plain_copy), "--steps", "9", "12", "--out", str(tmp_path / "average"))
    assert average.returncode == 0, average.stderr
    provenance = tmp_path / "average" / "provenance.json"
    provenance.write_text(provenance.read_text().replace(str(plain_run), str(plain_copy)))
    done = run_dst("evaluate", str(tmp_path / "average"), *texts, "--track")
    assert done.returncode == 0, done.stderr
    assert len(client.get_metric_history(run.info.run_id, "evaluate/held/bleu")) == 2


def test_ctranslate2_searches_with_the_weights_of_a_bundle(
    plain_run: Path, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2")
    evaluated, translated = tmp_path / "evaluated.de", tmp_path / "translated.de"
    assert main(["evaluate", str(plain_run), *texts, "--engine", "ct2", "--json", "--output", str(evaluated)]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "ctranslate2"
    assert main(["translate", str(plain_run), texts[1], "--engine", "ct2", "--output", str(translated)]) == 0
    assert evaluated.read_text() == translated.read_text()


@pytest.mark.slow
def test_a_store_that_is_down_keeps_the_scores(plain_copy: Path, texts: list[str]) -> None:
    store = plain_copy.parent / "mlflow.db"
    with closing(sqlite3.connect(store, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        done = run_dst("evaluate", str(plain_copy), *texts, "--track")
        assert done.returncode == 0
        assert done.stdout.startswith("BLEU ")
        assert "MLflow does not have the scores yet" in done.stderr
        assert f"dst track {plain_copy}" in done.stderr
        holder.execute("ROLLBACK")
    assert run_dst("track", str(plain_copy)).returncode == 0
    assert "evaluate/held/bleu" in tracked_run(plain_copy)[1].data.metrics


@pytest.mark.slow
def test_a_finished_run_is_evaluated_once(plain_copy: Path, texts: list[str]) -> None:
    run = plain_copy
    for step in (3, 9):
        shutil.rmtree(run / "checkpoints" / f"step-{step:08}")
    done = run_dst("evaluate", "--follow", str(run), *texts)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["step-00000006", "step-00000012", "bundle"]
    assert " held  BLEU " in lines[0]
    found = results(run)
    assert [record["step"] for record in found] == [6, 12, 12]
    assert {record["device"] for record in found} == {"cpu"}
    alone = run_dst("evaluate", str(run / "checkpoints" / "step-00000006"), *texts, "--json")
    assert found[0]["metrics"] == pytest.approx(json.loads(alone.stdout)["metrics"])

    done = run_dst("evaluate", "--follow", str(run), *texts)
    assert (done.returncode, done.stdout) == (0, "")
    done = run_dst("evaluate", "--follow", str(run), "--json")  # on the validation set of the run
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["test_set"]["name"] for line in done.stdout.splitlines()} == {"validation"}
    assert len(results(run)) == 6


@pytest.mark.slow
def test_checkpoints_are_evaluated_beside_the_training(toy_corpus: Path, texts: list[str], tmp_path: Path) -> None:
    run = tmp_path / "busy"
    settings = ("training.max_updates=24", "validation.every=0", "checkpoint.every_updates=3")
    settings += ("checkpoint.keep_last=2", "checkpoint.average_last=2")
    with forked(["-m", "dstransformer", *train_options(toy_corpus, run, *settings)], environment()) as training:
        wait_until(lambda: (run / ".lock").exists() or training.poll() is not None)
        follower = ["-m", "dstransformer", "evaluate", "--follow", str(run), *texts, "--interval", "0.1", "--track"]
        with forked(follower, environment()) as process:
            printed, errors = finish(process, training)
            assert process.returncode == 0, errors
        _, complaints = finish(training)
        assert training.returncode == 0, complaints
    assert "Traceback" not in errors + complaints
    found = results(run)
    steps = [record["step"] for record in found if record["checkpoint"] != "bundle"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 24
    assert found[-1]["checkpoint"] == "bundle"
    assert len(printed.splitlines()) == len(found)
    send_rest(run)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run_id = json.loads((run / "tracking.json").read_text())["run_id"]
    history = client.get_metric_history(run_id, "evaluate/held/bleu")
    assert sorted(point.step for point in history) == [*steps, 24]


@pytest.mark.parametrize(("src", "ref", "warning"), [
    ("en", "de", None),
    ("de", "en", "may be swapped: by fastText 0% of the lines that should be en look like it"),
    ("en", "half", "may be partly in another language: by fastText"),
])  # fmt: skip
def test_sides_in_other_languages_are_said_before_anything_is_translated(
    toy_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, src: str, ref: str, warning: str | None
) -> None:
    split = Corpus.open(toy_corpus).split("test")
    texts = {"en": split.src_texts(), "de": split.tgt_texts()}
    texts["half"] = [texts["de" if number % 2 else "en"][number] for number in range(len(split))]
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    bundle, sides = save_small_bundle(tmp_path / "bundle"), [str(tmp_path / name) for name in (src, ref)]
    given = ["--src", sides[0], "--ref", sides[1], "--device", "cpu"]
    assert main(["evaluate", str(bundle), *given]) == 0
    said = [record.message for record in caplog.records if "may be" in record.message]
    assert len(said) == (warning is not None)
    assert warning is None or f"of {sides[0]} and {sides[1]} {warning}" in said[0]
