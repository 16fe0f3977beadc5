from __future__ import annotations

from dstransformer.config import load_config
from dstransformer.evaluation import Evaluation, Score
from dstransformer.training.checkpoints.format import EarlyStoppingState
from dstransformer.training.early_stopping import EarlyStopping


def build(*overrides: str) -> EarlyStopping:
    return EarlyStopping(load_config("base", ["validation.patience=3", *overrides]).validation)


def evaluation(bleu: float, loss: float = 2.0, ranked_by: str = "bleu") -> Evaluation:
    return Evaluation((Score("bleu", bleu, "tok:13a"),), loss=loss, perplexity=7.0, ranked_by=ranked_by)


def test_it_counts_the_validations_since_the_best() -> None:
    stopping, nan = build(), float("nan")
    seen = []
    for score in (nan, 10.0, 12.0, 12.0, nan, 11.0, 13.0):
        stopping.update(evaluation(score))
        seen.append((stopping.state.best, stopping.state.validations, stopping.is_new_best, stopping.is_over))
    assert seen == [
        (None, 0, True, False), (10.0, 0, True, False), (12.0, 0, True, False), (12.0, 1, False, False),
        (12.0, 2, False, False), (12.0, 3, False, True), (13.0, 0, True, False),
    ]  # fmt: skip
    stopping.state = EarlyStoppingState("bleu", None, 1, "tok:13a")
    stopping.update(evaluation(nan))
    assert stopping.state == EarlyStoppingState("bleu", None, 2, "tok:13a")
    assert stopping.describe() == "no better bleu on validation in the last 2 validations"


def test_different_metrics_cannot_be_compared() -> None:
    stopping = build()
    stopping.state = EarlyStoppingState("bleu", 13.0, 2, "tok:13a")
    stopping.update(evaluation(12.0, loss=3.0, ranked_by="loss"))
    assert stopping.state == EarlyStoppingState("loss", -3.0)
    stopping.update(evaluation(12.0, loss=2.5, ranked_by="loss"))
    assert stopping.state == EarlyStoppingState("loss", -2.5), "a lower loss is better"


def test_scores_of_different_tokenizers_cannot_be_compared() -> None:
    stopping = build()
    stopping.state = EarlyStoppingState("bleu", 13.0, 2, "tok:zh")
    stopping.update(evaluation(12.0))
    assert stopping.state == EarlyStoppingState("bleu", 12.0, 0, "tok:13a")


def test_without_patience_training_goes_on() -> None:
    stopping = build("validation.patience=0")
    for score in (2.0, 1.0, 1.0, 1.0):
        stopping.update(evaluation(score))
    assert not stopping.is_over
    assert not stopping.is_new_best
