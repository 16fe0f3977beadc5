"""The data sets of a run: names, digests and profiles."""

from __future__ import annotations

import json
from dataclasses import replace

from support.services.mlflow_server import make_manifest, make_start

from dstransformer.config import load_config
from dstransformer.corpus import InputFile, PartInfo, SourceInfo
from dstransformer.tracking import RunStart
from dstransformer.tracking.datasets import MOST_FILES, manifest_digest, training_datasets


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
    assert len(treebank["profile"]["inputs"]) == MOST_FILES
    assert len(json.dumps(treebank)) < 20_000
