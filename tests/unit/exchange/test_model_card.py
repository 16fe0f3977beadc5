"""The model card of an export: which scores it claims, and what it must not publish."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dstransformer.data import Direction
from dstransformer.exchange.model_card import final_scores, model_card
from dstransformer.io.products import write_marker
from dstransformer.model import open_bundle

FINAL = {"metric": "bleu", "chosen": "best", "scores": {"average": 20.25, "best": 31.5}, "steps": {"best": [4]}}


def record(kind: str, **values: Any) -> str:
    return json.dumps({"kind": kind, "step": 8, "time": 1.0, **values}) + "\n"


@pytest.fixture
def run(tmp_path: Path, trained: Path) -> Path:
    """A run folder with its final bundle, and an average that was made later."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_marker(folder, "run")
    lines = [
        record("final_validation", bleu=30.0),  # of a final bundle before the run went on
        record("valid", bleu=29.0),
        record("final_validation", bleu=31.5, bleu_signature="nrefs:1|v", chrf=52.25),
        record("final_test", bleu=33.0, bleu_signature="nrefs:1|t"),
        '{"kind": 3, "final_": 1}\n',
        '"final_"\n',
    ]
    (folder / "metrics.jsonl").write_text("".join(lines))
    for name, added in (("bundle", {"final": FINAL}), ("average", {"averaged_steps": [2, 4]})):
        shutil.copytree(trained, folder / name)
        provenance = folder / name / "provenance.json"
        provenance.write_text(json.dumps(json.loads(provenance.read_text()) | added))
    return folder


def test_the_scores_are_those_of_the_final_bundle(run: Path) -> None:
    found = final_scores(open_bundle(run))
    assert [(one.split, one.metric, one.value, one.signature) for one in found] == [
        ("validation", "bleu", 31.5, "nrefs:1|v"),
        ("validation", "chrf", 52.25, None),
        ("test", "bleu", 33.0, "nrefs:1|t"),
    ]
    assert "`dst translate`, with which the scores below were measured," in model_card(open_bundle(run))


def test_another_bundle_in_the_folder_of_the_run_claims_no_scores(run: Path) -> None:
    bundle = open_bundle(run / "average")
    assert final_scores(bundle) == []
    card = model_card(bundle)
    assert "## Scores" not in card
    assert "scores below" not in card
    assert "metrics" not in card.partition("# Transformer")[0]


def test_without_the_records_of_its_run_a_bundle_has_the_score_it_was_chosen_by(run: Path) -> None:
    for lines in ("", record("final_validation", bleu=12.0, bleu_signature="nrefs:1|other")):
        (run / "metrics.jsonl").write_text(lines)
        assert [(one.split, one.value, one.signature) for one in final_scores(open_bundle(run))] == [
            ("validation", 31.5, None)
        ]


def test_the_directions_of_a_model_of_several_are_named(run: Path) -> None:
    directions = Direction("en", "de", ">>deu<<"), Direction("de", "en", ">>eng<<")
    bundle = replace(open_bundle(run / "bundle"), src_lang="mul", tgt_lang="mul", directions=directions)
    card = model_card(bundle)
    assert "translates `en` to `de` (`>>deu<<`), `de` to `en` (`>>eng<<`), each named by its tag" in card
    assert "mul" not in card
    assert 'tokenizer([">>deu<< A sentence.", ">>deu<< Another one."]' in card


def test_scores_of_weights_in_8_bits_are_called_so(run: Path) -> None:
    bundle = open_bundle(run / "bundle")
    in_int8 = {**bundle.provenance, "config": {"training": {"int8_weights": True}}}
    row = "| weights of the scores | as in an int8 export of CTranslate2 |"
    assert row not in model_card(bundle)
    assert row in model_card(replace(bundle, provenance=in_int8))
