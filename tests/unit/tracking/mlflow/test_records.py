"""The data sets of a run: names, digests and profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.services.mlflow_server import make_manifest, make_start

from dstransformer.config import load_config
from dstransformer.corpus import InputFile, PartInfo, SourceInfo
from dstransformer.tracking import RunStart
from dstransformer.tracking.mlflow.pending_folder import logged_metrics
from dstransformer.tracking.mlflow.records import (
    MAX_FILES,
    MAX_POINTS,
    manifest_digest,
    point_stride,
    steps_in,
    training_datasets,
)
from dstransformer.tracking.mlflow.store import publishing_interval


def start(*overrides: str, sha256: str = "a" * 64, files: int = 1) -> RunStart:
    inputs = tuple(InputFile(name=f"{number}.en", sha256=sha256) for number in range(files))
    sources = SourceInfo(name="files", revision=None, inputs=inputs), SourceInfo(name="toy", revision="r", inputs=())
    parts = (
        PartInfo(name="europarl", weight=2.0, tag=None, read=12, pairs=12),
        PartInfo(name="back", weight=1.0, tag="<bt>", read=8, pairs=8),
    )
    manifest = make_manifest().model_copy(update={"sources": sources, "parts": parts})
    return replace(make_start(), manifest=manifest, config=load_config("base", overrides))


def test_a_corpus_of_one_source_is_one_data_set() -> None:
    (corpus,) = training_datasets(make_start())
    assert corpus["digest"] == manifest_digest(make_manifest())


def test_the_digest_of_a_source_is_that_of_its_inputs() -> None:
    corpus, europarl, back = training_datasets(start())
    _, other, same = training_datasets(start(sha256="b" * 64))
    assert europarl["digest"] != other["digest"]
    assert back == same
    assert {len(record["digest"]) for record in (corpus, europarl, back)} == {32}


def test_a_mixture_stands_in_place_of_the_weight() -> None:
    stages = "[{epochs: 2, weights: {europarl: 1}}, {temperature: 5}]"
    _, europarl, back = training_datasets(start(f"training.mixture={stages}"))
    assert europarl["profile"]["weights by stage"] == [{"epochs": 2, "weight": 1}, {"temperature": 5}]
    assert back["profile"]["weights by stage"] == [{"epochs": 2, "weight": 0.0}, {"temperature": 5}]
    assert back["tags"] == {"tag": "<bt>"}


def test_of_many_files_only_some_are_listed() -> None:
    _, treebank, _ = training_datasets(start(files=2400))
    assert treebank["profile"]["files"] == 2400
    assert len(treebank["profile"]["inputs"]) == MAX_FILES
    assert len(json.dumps(treebank)) < 20_000


@pytest.mark.parametrize(("points", "stride"), [(1, 1), (2000, 1), (4000, 1), (4001, 2), (100_000, 25)])
def test_a_curve_has_at_most_a_few_thousand_points(points: int, stride: int) -> None:
    assert point_stride(points) == stride
    assert points / stride <= MAX_POINTS


def test_a_run_that_is_sent_again_is_thinned_too(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    lines = [{"kind": "train", "step": step, "time": 1.0, "loss": 2.0} for step in range(1, 10_001)]
    lines += [{"kind": "valid", "step": step, "time": 1.0, "bleu": 2.0} for step in range(1, 11)]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = logged_metrics(metrics)
    losses = [step for name, _, _, step in found if name == "train/loss"]
    assert losses == list(range(3, 10_001, 3))
    assert len([name for name, *_ in found if name == "valid/bleu"]) == 10


def test_system_metrics_of_a_week_are_a_few_thousand_points() -> None:
    age, points = 0.0, 0
    while age < 7 * 24 * 3600:
        age += publishing_interval(10.0, age)
        points += 1
    assert points < 3000
    assert publishing_interval(10.0, 60.0) == 10.0


def test_steps_are_those_of_complete_checkpoints(tmp_path: Path) -> None:
    for name in ("step-00000012", "step-00000004", ".partial-step-00000016", "step-odd"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").touch()
    assert steps_in(tmp_path) == [4, 12]
    assert steps_in(tmp_path / "missing") == []
