from __future__ import annotations

import json

from dstransformer.evaluation import Evaluation, Sample, Score

SCORES = (Score("bleu_first_500", 33.456, "nrefs:1"), Score("chrf", 60.0, "nc:6"))


def test_tracker_json_and_terminal_show_the_same_values() -> None:
    sample = Sample("A dog.", "Ein Hund.", "Hund.")
    evaluation = Evaluation(SCORES, sentences=500, seconds=2.5, loss=1.5, perplexity=3.0, samples=(sample,))
    assert evaluation.metrics == {"loss": 1.5, "perplexity": 3.0, "bleu_first_500": 33.456, "chrf": 60.0}
    assert evaluation.signatures == {"bleu_first_500": "nrefs:1", "chrf": "nc:6"}
    assert str(evaluation.main) == "BLEU (first 500 sentences) 33.46 (nrefs:1)"
    assert json.loads(json.dumps(evaluation.to_json())) == {
        "sentences": 500,
        "seconds": 2.5,
        "metrics": dict(evaluation.metrics),
        "signatures": dict(evaluation.signatures),
    }


def test_metrics_omit_what_was_not_computed() -> None:
    assert Evaluation(SCORES).metrics == {"bleu_first_500": 33.456, "chrf": 60.0}


def test_the_metric_that_ranks_is_one_of_them() -> None:
    mains = {
        name: Evaluation(SCORES, loss=2.5, ranked_by=name, loss_signature="pieces").main
        for name in ("", "bleu", "chrf")
    }
    assert {name: main.name for name, main in mains.items()} == {
        "": SCORES[0].name,
        "bleu": SCORES[0].name,
        "chrf": "chrf",
    }
    found = Evaluation(SCORES, loss=2.5, ranked_by="loss", loss_signature="pieces")
    assert (found.main, found.main.rank, found.main.number) == (Score("loss", 2.5, "pieces"), -2.5, "2.5000")
    assert found.signatures["loss"] == "pieces"


def test_the_metric_decides_which_score_is_better_and_not_how_its_name_begins() -> None:
    scores = {
        "ter": -1.0, "ter_first_500": -1.0, "ter_en-de": -1.0, "metricx_eng_Latn-deu_Latn_first_500": -1.0,
        "bleu": 1.0, "bleu_compound_split": 1.0, "ter_x": 1.0, "loss_like_first_500": 1.0,
    }  # fmt: skip
    assert {name: Score(name, 1.0).rank for name in scores} == scores
    assert (
        Score("bleu_compound_split_en-de_first_500", 1.0).label == "BLEU (compound-split) en-de (first 500 sentences)"
    )
