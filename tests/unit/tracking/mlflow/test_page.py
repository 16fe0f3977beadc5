from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.services.mlflow_server import evaluation_of, make_manifest, make_start

from dstransformer.config import load_config
from dstransformer.data import Direction, InputFile, PartInfo, SourceInfo
from dstransformer.errors import without_secrets
from dstransformer.evaluation import Evaluation, Score
from dstransformer.tracking.events import RunStart
from dstransformer.tracking.mlflow.location import sqlite_address
from dstransformer.tracking.mlflow.page import (
    MAX_FILES,
    MAX_POINTS,
    RunSummary,
    dataset_name,
    default_run_name,
    describe,
    example_target,
    manifest_digest,
    model_name,
    page_instructions,
    point_stride,
    training_datasets,
)

RUN = Path("/data/runs/base")


def test_names_tell_runs_corpora_and_models_apart() -> None:
    run = replace(make_start(), run_name=None, tags={"preset": "presets/mine.yaml"})
    assert re.fullmatch(r"mine · runs/base · \d{4}-\d\d-\d\d \d\d:\d\d", default_run_name(run, RUN))
    assert dataset_name(run) == "data/wmt14.en-de (en-de)"
    assert model_name(run, RUN) == "base en-de"
    assert model_name(replace(run, run_name="a/b: 1.5"), RUN) == "a-b- 1-5 en-de"


def test_an_example_names_a_direction_that_its_language_tells() -> None:
    back, real, other = (Direction("en", "de", "<bt>"), Direction("en", "de", ">>deu<<"), Direction("de", "en", "<en>"))
    assert example_target([back, real, other]) == " --to en"
    assert example_target([back, real]) == " --to '<bt>'"
    assert example_target([]) == ""


def test_a_description_shows_results_and_usage() -> None:
    bundle = RUN / "bundle"
    scores = {
        "final_validation": evaluation_of(bleu_first_500=39.4, signature="nrefs:1"),
        "final_test": evaluation_of(bleu=38.1, signature="nrefs:1"),
    }
    text = describe(make_start(), RUN, RunSummary("finished", 100000, bundle, scores))
    assert text.startswith(
        "BLEU **38.10** on test, **39.40** on validation (its first 500 sentences); sacrebleu `nrefs:1`\n\n"
        "Finished at update 100,000 of 100,000.\n"
    )
    assert "| corpus | `/data/wmt14.en-de`, en-de, vocabulary 37,000; train 20 pairs |" in text
    assert f"dst translate {bundle} input.txt --output output.txt" in text


def test_a_description_has_the_papers_score_and_the_cost() -> None:
    final = Evaluation((Score("bleu", 26.4, "nrefs:1"), Score("bleu_compound_split", 27.31, "compounds:split")))
    cost = {"flops": 9.5e17, "pflop_days": 9.5e17 / 8.64e19, "device_hours": 96.0}
    text = describe(make_start(), RUN, RunSummary("finished", 100000, None, {"final_test": final}, cost))
    assert text.startswith(
        "BLEU **26.40** on test; sacrebleu `nrefs:1`\n\n"
        "BLEU as in the paper's tables (compounds split) **27.31** on test, `compounds:split`\n\n"
        "Finished at update 100,000 of 100,000.\n\n"
        "Training cost: 9.5e+17 FLOPs (0.011 PFLOP-days), 96 device hours.\n\n| | |"
    )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (None, "Training."),
        ("killed", "Interrupted after update 7 of 100,000; run the same command to resume."),
        ("failed", "Failed after update 7 of 100,000."),
    ],
)
def test_a_description_without_a_bundle_says_how_far_the_run_got(status: None, said: str) -> None:
    text = describe(make_start(), RUN, RunSummary(status, 7))
    assert text.startswith(f"{said}\n\n| | |")
    assert "bundle" not in text


def test_instructions_give_a_command_and_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = "#/experiments/3/runs/r?workflowType=machine_learning"
    assert page_instructions(f"sqlite:///{tmp_path}/my runs/mlflow.db", "3", "r") == (
        f"MLflow: `mlflow ui --backend-store-uri 'sqlite:///my runs/mlflow.db'`, then open http://127.0.0.1:5000/{page}"
    )
    command = page_instructions(sqlite_address(tmp_path / "a?b" / "mlflow.db"), "3").split("`")[1]
    assert command == "mlflow ui --backend-store-uri sqlite+pysqlite:///a%3Fb/mlflow.db"
    assert page_instructions("https://host/", "3", "r") == f"MLflow: https://host/{page}"
    assert page_instructions("postgresql://me:secret@host/db", "3", "r").startswith(
        "MLflow: postgresql://me:***@host/db,"
    )


@pytest.mark.parametrize(("address", "shown"), [
    ("https://me:secret@host:1/x", "https://me:***@host:1/x"),
    ("https://:secret@host", "https://:***@host"),
    ("http://me:se:cr@et@host/a@b", "http://me:***@host/a@b"),
    ("https://secret@host", "https://***@host"),
    ("postgresql+psycopg://me@host/db", "postgresql+psycopg://me@host/db"),
    ("postgresql://host/db?user=me&password=secret&sslmode=x", "postgresql://host/db?user=me&password=***&sslmode=x"),
    ("http://[::1]:5000", "http://[::1]:5000"),
    ("sqlite:////runs/a:b@c/mlflow.db", "sqlite:////runs/a:b@c/mlflow.db"),
])  # fmt: skip
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert without_secrets(address) == shown
    assert without_secrets(f"API request to {address} failed") == f"API request to {shown} failed"


def start_with_sources(*overrides: str, sha256: str = "a" * 64, files: int = 1) -> RunStart:
    inputs = tuple(InputFile(name=f"{number}.en", sha256=sha256) for number in range(files))
    sources = SourceInfo(name="files", revision=None, inputs=inputs), SourceInfo(name="toy", revision="r", inputs=())
    parts = (
        PartInfo(name="europarl", src_lang="en", tgt_lang="de", weight=2.0, tag=None, read=12, pairs=12),
        PartInfo(name="back", src_lang="en", tgt_lang="de", weight=1.0, tag="<bt>", read=8, pairs=8),
    )
    manifest = make_manifest().model_copy(update={"sources": sources, "parts": parts})
    return replace(make_start(), manifest=manifest, config=load_config("base", overrides))


def test_a_corpus_of_one_source_is_one_data_set() -> None:
    (corpus,) = training_datasets(make_start())
    assert corpus["digest"] == manifest_digest(make_manifest())


def test_the_digest_of_a_source_is_that_of_its_inputs() -> None:
    corpus, europarl, back = training_datasets(start_with_sources())
    _, other, same = training_datasets(start_with_sources(sha256="b" * 64))
    assert europarl["digest"] != other["digest"]
    assert back == same
    assert {len(record["digest"]) for record in (corpus, europarl, back)} == {32}


def test_a_mixture_stands_in_place_of_the_weight() -> None:
    stages = "[{epochs: 2, weights: {europarl: 1}}, {temperature: 5}]"
    _, europarl, back = training_datasets(start_with_sources(f"training.mixture={stages}"))
    assert europarl["profile"]["weights by stage"] == [{"epochs": 2, "weight": 1}, {"temperature": 5}]
    assert back["profile"]["weights by stage"] == [{"epochs": 2, "weight": 0.0}, {"temperature": 5}]
    assert back["tags"] == {"tag": "<bt>"}


def test_of_many_files_only_some_are_listed() -> None:
    _, treebank, _ = training_datasets(start_with_sources(files=2400))
    assert treebank["profile"]["files"] == 2400
    assert len(treebank["profile"]["inputs"]) == MAX_FILES
    assert len(json.dumps(treebank)) < 20_000


@pytest.mark.parametrize(("points", "stride"), [(1, 1), (2000, 1), (4000, 1), (4001, 2), (100_000, 25)])
def test_a_curve_has_at_most_a_few_thousand_points(points: int, stride: int) -> None:
    assert point_stride(points) == stride
    assert points / stride <= MAX_POINTS
