"""A parser from a treebank to F1: data, training, parsing, scoring, through the commands."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow.pyfunc
import pytest
from mlflow.tracking import MlflowClient
from support.data.prep import build, refuses
from support.data.trees import write_treebank
from support.processes.launching import run_dst
from support.processes.ranks import run_dst_ranks
from support.services.mlflow_runs import bundle_model, send_rest, tracked_run

from dstransformer.cli import main
from dstransformer.extras.parsing.trees import parse_tree, read_trees

SMALL = [
    "model.num_layers=1",
    "model.d_model=32",
    "model.d_ff=64",
    "model.num_heads=2",
    "model.dropout=0.0",
    "batch.src_tokens=400",
    "batch.tgt_tokens=400",
    "schedule.warmup_steps=20",
    "training.max_updates=30",
    "training.log_every=10",
    "validation.every=15",
    "checkpoint.every_updates=15",
    "checkpoint.average_last=1",
    "decoding.beam_size=3",
    "decoding.max_extra_tokens=40",
    "tracking.system_metrics=false",
]


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_treebank(tmp_path_factory.mktemp("treebank") / "wsj")


@pytest.fixture(scope="module")
def corpus(treebank: Path) -> Path:
    out = treebank.parent / "corpus"
    options = ["--source", "trees", "--trees", treebank, "--splits", "files:0.1,0.1", "--vocab-size", "330"]
    assert build(*options, "--out", out) == 0
    return out


@pytest.fixture(scope="module")
def run(corpus: Path) -> Path:
    """A parser trained by two ranks for thirty updates."""
    folder = corpus.parent / "runs" / "parser"
    command = ["train", "parser_sample", "--corpus", str(corpus), "--run", str(folder), "--set", *SMALL]
    done = run_dst_ranks(2, *command)
    assert done.returncode == 0, done.stderr
    assert "test F1 " in done.stdout
    return folder


def test_f1_is_tracked_in_the_place_of_bleu(run: Path, tmp_path: Path) -> None:
    send_rest(run)
    client, tracked = tracked_run(run)
    assert {"valid/f1", "valid/tagging_accuracy", "final_test/f1"} <= set(tracked.data.metrics)
    assert not any("bleu" in name for name in tracked.data.metrics)
    assert [metric.step for metric in client.get_metric_history(tracked.info.run_id, "valid/f1")] == [15, 30]
    samples = read_artifact(client, tracked.info.run_id, "samples/valid-step-00000030.txt", tmp_path)
    assert "gold:\n(TOP\n  (S\n    (NP (DT " in samples
    assert "COLLINS.prm" in read_artifact(client, tracked.info.run_id, "signatures/valid.json", tmp_path)
    page = tracked.data.tags["mlflow.note.content"]
    assert "F1 **" in page
    assert "dst parse " in page
    assert "translate" not in page


def read_artifact(client: MlflowClient, run_id: str, name: str, folder: Path) -> str:
    return Path(client.download_artifacts(run_id, name, str(folder))).read_text()


def test_the_model_in_mlflow_parses(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_rest(run)
    client, tracked = tracked_run(run)
    model = bundle_model(client, tracked)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{run.parent / 'mlflow.db'}")
    trees = mlflow.pyfunc.load_model(model.model_uri).predict(["The cat can't see a dog."])
    assert parse_tree(trees[0]).words() == ["The", "cat", "ca", "n't", "see", "a", "dog", "."]


def test_text_becomes_trees_over_its_words(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The cat (the old one) can't see a dog.\n\na\nan unseen word\n")
    for options, words in (
        ([], ["The cat -LRB- the old one -RRB- ca n't see a dog .", "", "a", "an unseen word"]),
        (["--tokenised"], ["The cat -LRB-the old one-RRB- can't see a dog.", "", "a", "an unseen word"]),
    ):
        out = tmp_path / f"{len(options)}.mrg"
        done = run_dst("parse", str(run), str(text), "--output", str(out), *options)
        assert done.returncode == 0, done.stderr
        assert [" ".join(located.tree.words()) for located in read_trees(str(out))] == words
        assert out.read_text().splitlines()[1] == "(())"


def test_a_bundle_is_evaluated_on_gold_trees(run: Path, treebank: Path, tmp_path: Path) -> None:
    gold, out = treebank / "wsj_1919.mrg", tmp_path / "out.mrg"
    done = run_dst("evaluate", str(run), "--task", "parsing", "--gold", str(gold), "--output", str(out), "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert (scores["sentences"], scores["failed"], scores["beam_size"]) == (10, 0, 3)
    assert "tags:punctuation" in scores["signature"]
    again = run_dst(
        "evaluate", "--task", "parsing", "--gold", str(gold), "--trees", str(out), "--tags", "punctuation", "--json"
    )
    assert json.loads(again.stdout)["metrics"] == scores["metrics"]


def test_a_parser_is_no_translator(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "pictures"
    text.write_text("a cat\n")
    assert "is a parser: use `dst parse`" in refuses(capsys, main(["translate", str(run), str(text)]))
    said = refuses(capsys, main(["attention", str(run), "a cat", "--out", str(out)]))
    assert "is a parser: the attention of a translation model can be drawn" in said
    assert not out.exists()


def test_its_scores_are_found_again(run: Path, tmp_path: Path) -> None:
    done = run_dst("reproduce", str(run), "--evaluate-only", "--out", str(tmp_path / "again"), "--json")
    assert done.returncode == 0, done.stderr
    assert {"validation f1", "test f1"} <= {figure["name"] for figure in json.loads(done.stdout)["figures"]}
