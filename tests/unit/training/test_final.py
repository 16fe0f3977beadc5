"""Which weights become the bundle of a run. The checkpoints need not exist on disk."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.services.serving import save_small_bundle

from dstransformer.config import Config, load_config
from dstransformer.data.plan import Position
from dstransformer.distributed.supervision.stop_signals import StopRequested
from dstransformer.evaluation.validation import score_name
from dstransformer.io.files import RetryPolicy, file_sha256
from dstransformer.model import bundle
from dstransformer.training.checkpoints.checkpoint_folder import rank_by_score, select_kept
from dstransformer.training.checkpoints.format import Checkpoint, TrainState
from dstransformer.training.final import Candidates, Choice, _Comparison, _warn_of_a_better_one, choose, find_candidates


def checkpoint(step: int, score: float | None = None, metric: str | None = "bleu") -> Checkpoint:
    return Checkpoint(
        Path(f"step-{step:08d}"), TrainState(step, Position(0, step), 1, 1, "fp32", "corpus"), score, metric
    )


def config(warmup: int, average_last: int = 3, final: str = "average") -> Config:
    changes = [f"schedule.warmup_steps={warmup}", f"checkpoint.average_last={average_last}", "checkpoint.keep_last=9"]
    return load_config("toy", [*changes, f"checkpoint.final={final}"])


def find(
    checkpoints: Sequence[Checkpoint], settings: Config, known: bool = False, damaged: Sequence[int] = ()
) -> Candidates:
    steps = sorted([*damaged, *(checkpoint.state.step for checkpoint in checkpoints)])
    return find_candidates(checkpoints, steps, settings, lambda _: known, Path("average"))


def test_the_average_takes_nothing_from_the_warmup() -> None:
    checkpoints = [checkpoint(step, float(step)) for step in (100, 200, 300, 400)]
    found = find(checkpoints, config(warmup=300))
    assert found.steps("average") == (300, 400), "the end of the warm-up counts as past it"
    assert not found.all_past_warmup
    found = find(checkpoints, config(warmup=200))
    assert found.steps("average") == (200, 300, 400)
    assert found.all_past_warmup
    assert "average" not in find(checkpoints, config(warmup=500)).checkpoints


def test_fewer_checkpoints_than_the_window_are_all_averaged() -> None:
    found = find([checkpoint(50), checkpoint(100, 1.0)], config(warmup=50, average_last=5))
    assert found.steps("average") == (50, 100)
    assert found.all_past_warmup


def test_a_checkpoint_of_a_stop_request_is_not_averaged() -> None:
    stopped = replace(checkpoint(120), interim=True)
    checkpoints = [checkpoint(50), checkpoint(100), stopped, checkpoint(150)]
    assert find(checkpoints, config(warmup=50, average_last=2)).steps("average") == (100, 150)
    assert find(checkpoints, config(warmup=50, average_last=3)).steps("average") == (50, 100, 150)


def test_last_and_best() -> None:
    checkpoints = [checkpoint(1, 30.0), checkpoint(2), checkpoint(3, 20.0)]
    found = find(checkpoints, config(warmup=1), known=True)
    assert (found.steps("last"), found.steps("best")) == ((3,), (1,))
    assert found.known == {(1,): 30.0, (3,): 20.0}
    assert find(checkpoints, config(warmup=1)).known == {}, "scores of other sentences are computed again"


def test_scores_on_different_sentences_are_not_compared() -> None:
    part, whole = checkpoint(1, 60.0, "bleu_first_100"), checkpoint(2, 30.0)
    assert rank_by_score([part, whole]) == [whole]
    assert select_kept([part, whole, checkpoint(5)], keep_last=1, keep_best=1)[0] == whole


def test_scores_of_different_tokenizers_are_not_compared() -> None:
    before, now = replace(checkpoint(1, 60.0), signature="tok:13a"), replace(checkpoint(2, 30.0), signature="tok:zh")
    assert rank_by_score([before, now]) == [now]


def test_a_lower_loss_is_better() -> None:
    first, second = checkpoint(1, 2.0, "loss"), checkpoint(2, 3.0, "loss")
    assert rank_by_score([first, second]) == [first, second]


SCORES = {"average": 14.1, "last": 29.9, "best": 29.9}


@pytest.mark.parametrize(("final", "whole", "scores", "chosen"), [
    ("average", True, SCORES, "average"),
    ("average", False, SCORES, "last"),
    ("average", False, {**SCORES, "best": 30.0}, "best"),
    ("best_on_validation", True, SCORES, "last"),
    ("best_on_validation", True, {"average": 30.0, "last": 30.0, "best": 30.0}, "average"),
    ("average", False, {"last": 1.0, "best": 2.0}, "best"),
])  # fmt: skip
def test_the_choice_follows_configuration_and_scores(
    final: str, whole: bool, scores: dict[str, float], chosen: str
) -> None:
    name, reason = choose(final, Candidates({}, whole, {}, Path()), scores, 2000)
    assert name == chosen
    assert ("schedule.warmup_steps = 2000" in reason) == (final == "average" and not whole)
    worse = "checkpoint.final = average, although it is worse than the last checkpoint, which best_on_validation takes"
    assert (reason == worse) == (final == "average" and whole)


def test_the_choice_is_described() -> None:
    steps = {"average": [4, 8, 12], "last": [12], "best": [8]}
    choice = Choice("average", "checkpoint.final = average", "bleu", {**SCORES, "best": 31.5}, steps)
    assert choice.lines() == [
        "on validation: the average of steps 4, 8, 12 bleu 14.10; the last checkpoint (step 12) bleu 29.90; "
        "the best checkpoint (step 8) bleu 31.50",
        "the bundle is the average of steps 4, 8, 12: checkpoint.final = average",
    ]


@pytest.mark.parametrize(("chosen", "warnings"), [("average", 1), ("best", 0)])
def test_a_better_candidate_that_was_not_chosen_is_a_warning(
    chosen: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    steps = {"average": [4, 8], "last": [8], "best": [4]}
    world: Any = SimpleNamespace(is_rank0=True)
    _warn_of_a_better_one(Choice(chosen, "a reason", "bleu", {**SCORES, "best": 31.5}, steps), world)
    warning = (
        "the average of steps 4, 8 bleu 14.10 is worse than the best checkpoint (step 4) bleu 31.50; "
        "checkpoint.final=best_on_validation would choose that one"
    )
    assert caplog.messages == [warning] * warnings


@pytest.mark.parametrize(("metric", "start", "chosen", "is_worse"), [
    ("bleu", 31.6, "best", True),
    ("bleu", 31.5, "best", False),
    ("bleu", 20, "last", False),
    ("loss", 29.8, "last", True),
])  # fmt: skip
def test_a_bundle_that_is_worse_than_where_it_began_is_a_warning(
    metric: str, start: float, chosen: str, is_worse: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scores = {**SCORES, "best": 31.5, "start": start}
    choice = Choice(chosen, "a reason", metric, scores, {name: [8] for name in SCORES})
    _warn_of_a_better_one(choice, cast("Any", SimpleNamespace(is_rank0=True)))
    assert any(f"is worse than where it began {metric}" in message for message in caplog.messages) == is_worse
    assert choice.lines()[0].endswith(f"; {choice.describe('start')}")


def comparison(retry: RetryPolicy) -> _Comparison:
    """A comparison by a validator that gives each bundle a BLEU of 20."""
    evaluation = SimpleNamespace(main=SimpleNamespace(value=20.0), paper_bleu=None)
    manifest = SimpleNamespace(tgt_lang="fr")
    corpus = SimpleNamespace(split=lambda name: name, splits=["validation"], manifest=manifest)
    trainer: Any = SimpleNamespace(
        session=SimpleNamespace(
            world=SimpleNamespace(collective_errors=nullcontext),
            enter=lambda _: None,
            until_stopped=lambda work: work(),
        ),
        experiment=SimpleNamespace(corpus=corpus),
        validator=SimpleNamespace(score_name=lambda *_: "bleu", signature=lambda _: "", load=dict),
        evaluate=lambda *_: evaluation,
        config=config(warmup=1),
        evaluation=None,
    )
    return _Comparison(trainer, retry)


def test_a_candidate_that_cannot_be_read_now_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_small_bundle(tmp_path / "bundle")
    candidates = Candidates({"last": [replace(checkpoint(4), path=tmp_path)]}, True, {}, Path())
    failures: list[tuple[str, str, int]] = []

    def fail(file: Path) -> str:
        monkeypatch.setattr(bundle, "file_sha256", file_sha256)
        raise OSError(errno.ESTALE, "Stale file handle", str(file))

    def record(what: str, error: Exception, left: int) -> None:
        failures.append((what, str(error).rpartition(": ")[2], left))

    def stop(_: float) -> None:
        raise StopRequested

    patient, stopped = RetryPolicy(0.0, lambda _: None, record), RetryPolicy(0.0, stop, record)
    monkeypatch.setattr(bundle, "file_sha256", fail)
    assert comparison(patient).score(candidates) == {"last": 20.0}
    monkeypatch.setattr(bundle, "file_sha256", fail)
    with pytest.raises(StopRequested):
        comparison(stopped).score(candidates)
    monkeypatch.setattr(bundle, "file_sha256", fail)
    with pytest.raises(StopRequested):
        comparison(stopped).evaluate_bundle(path, (4,))
    last = "the evaluation of the last checkpoint"
    assert failures == [(what, "Stale file handle", 4) for what in (last, last, "the evaluation of the bundle")]


@pytest.mark.parametrize(("sentences", "name"), [(0, "bleu"), (40, "bleu"), (50, "bleu"), (39, "bleu_first_39")])
def test_the_name_of_a_partial_score_says_so(sentences: int, name: str) -> None:
    assert score_name("bleu", sentences, total=40) == name
