"""Which version of a registered model is the champion."""

from __future__ import annotations

from dataclasses import replace

from dstransformer.evaluation import Score
from dstransformer.tracking.mlflow.models import ComparableScore, is_better

NEW = ComparableScore(Score("bleu", 39.04, "nrefs:1|tok:13a"), "test", "multi30k (en-de) test", "d" * 32)
OLD = replace(NEW, score=replace(NEW.score, value=38.33))


def test_the_higher_score_wins() -> None:
    assert is_better(NEW, OLD, "3") == (True, "BLEU 39.04 > 38.33 of version 3 on test: multi30k (en-de) test")
    assert is_better(OLD, NEW, "3") == (False, "BLEU 38.33 <= 39.04 of version 3 on test: multi30k (en-de) test")
    assert is_better(NEW, NEW, "3")[0] is False


def test_what_cannot_be_compared_wins_nothing() -> None:
    assert is_better(None, OLD, "3") == (False, "no score to compare with version 3")
    assert is_better(NEW, None, "3") == (False, "not comparable: version 3 has no BLEU on test")
    other = replace(OLD, score=replace(OLD.score, signature="nrefs:1|tok:intl"))
    assert is_better(NEW, other, "3") == (
        False,
        "not comparable with version 3: BLEU on test has another signature (nrefs:1|tok:13a, not nrefs:1|tok:intl)",
    )
    better, reason = is_better(NEW, replace(OLD, digest="e" * 32), "3")
    assert not better
    assert "has another dataset" in reason
    unknown = replace(NEW, digest="")
    assert not is_better(unknown, replace(OLD, digest=""), "3")[0]
