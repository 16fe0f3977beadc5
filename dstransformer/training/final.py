"""Chooses the final bundle of a run among the average, the last and the best checkpoint, by validation score.

The paper averages the last checkpoints (section 6.1). In a short run the average may include models from the warm-up
and be far worse than the last checkpoint, so all candidates are scored.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstransformer.config import Config
from dstransformer.distributed.world import World
from dstransformer.errors import StorageError
from dstransformer.evaluation import Evaluation, Score
from dstransformer.evaluation.validation import add_paper_bleu
from dstransformer.io.files import ROOM_ADVICE, RetryPolicy, storage_errors
from dstransformer.model import open_bundle
from dstransformer.tracking.events import BundleSaved
from dstransformer.training.checkpoints.averaging import write_average
from dstransformer.training.checkpoints.checkpoint_folder import (
    CheckpointFolder,
    past_warmup,
    rank_by_score,
    select_newest,
)
from dstransformer.training.checkpoints.format import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from dstransformer.training.trainer import Trainer

logger = logging.getLogger(__name__)

Steps = tuple[int, ...]

#: The candidates and their names in messages. On a tie, the earlier one wins.
CANDIDATE_NAMES = {"average": "the average", "last": "the last checkpoint", "best": "the best checkpoint"}

#: The bundle that training started from: its score stands beside the candidates', and it is never chosen.
START = "start"


def _name(candidate: str, steps: Sequence[int]) -> str:
    if len(steps) > 1:
        return f"{CANDIDATE_NAMES[candidate]} of steps {', '.join(map(str, steps))}"
    return f"{CANDIDATE_NAMES[candidate]} (step {steps[0]})"


@dataclass(frozen=True)
class Choice:
    """Which candidate became the final bundle, and why.

    Attributes:
        chosen: ``average``, ``last`` or ``best``.
        reason: The reason, for messages.
        metric: The validation score that compares them: ``bleu``, ``bleu_first_500``, ``chrf``, ``loss``, ``f1``.
        scores: The score of each candidate, by name; and that of the ``start``, if it is known.
        steps: The steps of the checkpoints that each candidate averages, by name.
    """

    chosen: str
    reason: str
    metric: str
    scores: dict[str, float]
    steps: dict[str, list[int]]

    def name(self, candidate: str) -> str:
        """A candidate as text: ``the average of steps 4, 8, 12``."""
        return "where it began" if candidate == START else _name(candidate, self.steps[candidate])

    def describe(self, candidate: str) -> str:
        """A candidate as text, with its score."""
        return f"{self.name(candidate)} {self.metric} {Score(self.metric, self.scores[candidate]).number}"

    def lines(self) -> list[str]:
        """Lines of text with all scores and the choice."""
        compared = "; ".join(map(self.describe, self.scores))
        return [f"on validation: {compared}", f"the bundle is {self.name(self.chosen)}: {self.reason}"]


@dataclass(frozen=True)
class Candidates:
    """The candidates for the final bundle.

    Attributes:
        checkpoints: The checkpoints of each candidate, oldest first, by name: ``average``, ``last`` or ``best``. There
            is no average if no checkpoint is past the warm-up.
        all_past_warmup: Whether the whole window of the average (the last ``average_last`` checkpoints, or fewer if
            the run has fewer) is past the warm-up.
        known: Scores that need not be computed again, by the steps of the candidate.
        average: The folder for the bundle of the average, if it averages several checkpoints.
    """

    checkpoints: dict[str, list[Checkpoint]]
    all_past_warmup: bool
    known: dict[Steps, float]
    average: Path

    def steps(self, name: str) -> Steps:
        """The steps of a candidate's checkpoints."""
        return tuple(checkpoint.state.step for checkpoint in self.checkpoints[name])

    def bundle(self, name: str) -> Path:
        """The bundle with a candidate's weights."""
        members = self.checkpoints[name]
        return self.average if len(members) > 1 else members[0].bundle

    def write(self, name: str, out: Path, provenance: Mapping[str, Any]) -> None:
        """Write a candidate as a bundle, with more entries in its provenance.

        Raises:
            StorageError: It cannot be written.
        """
        provenance = {"averaged_steps": list(self.steps(name)), **provenance}
        write_average([open_bundle(self.bundle(name))], out, provenance, full=ROOM_ADVICE)


def find_candidates(
    checkpoints: Sequence[Checkpoint],
    steps: Iterable[int],
    config: Config,
    is_known: Callable[[Checkpoint], bool],
    average: Path,
) -> Candidates:
    """Find the candidates among the checkpoints of a run.

    Args:
        checkpoints: The intact checkpoints of the run, oldest first; at least one.
        steps: The updates of all its checkpoints, damaged ones included.
        config: The configuration of the run.
        is_known: Whether a checkpoint's score was computed on the same sentences with the same search.
        average: The folder for the bundle of the average.
    """
    window = select_newest(checkpoints, steps, config.checkpoint.average_last)
    averaged = past_warmup(window, config.schedule.warmup_steps)
    all_candidates = {"average": averaged, "last": [checkpoints[-1]], "best": rank_by_score(checkpoints)[:1]}
    candidates = {name: list(members) for name, members in all_candidates.items() if members}
    singles = {members[0].state.step: members[0] for members in candidates.values() if len(members) == 1}
    known: dict[Steps, float] = {(step,): c.score for step, c in singles.items() if c.score is not None and is_known(c)}
    return Candidates(candidates, len(averaged) == len(window), known, average)


def prepare_candidates(
    folder: CheckpointFolder, config: Config, metric: str, signature: str, average: Path
) -> Candidates:
    """Find the candidates among the intact checkpoints of a run, and write the average. See :func:`find_candidates`.

    Raises:
        DataError: All checkpoints are damaged.
        StorageError: There are none, one cannot be read now, or the average cannot be written.
    """

    def is_known(checkpoint: Checkpoint) -> bool:
        same_search = open_bundle(checkpoint.bundle).decoding == config.decoding
        return same_search and (checkpoint.metric, checkpoint.signature) == (metric, signature)

    steps = folder.steps()
    candidates = find_candidates(folder.intact(), steps, config, is_known, average)
    members = candidates.checkpoints.get("average", ())
    if len(members) > 1:
        bundles = [open_bundle(checkpoint.bundle) for checkpoint in members]
        with storage_errors(average, full=ROOM_ADVICE):
            write_average(bundles, average, {"averaged_steps": candidates.steps("average")}, full=ROOM_ADVICE)
    return candidates


def choose(final: str, candidates: Candidates, ranks: Mapping[str, float], warmup_steps: int) -> tuple[str, str]:
    """Choose the candidate that becomes the bundle, by ``checkpoint.final`` and the ``Score.rank`` of each candidate.

    On a tie, the first in ``CANDIDATE_NAMES`` wins.

    Returns:
        The name of the candidate, and the reason.
    """
    best = max((name for name in CANDIDATE_NAMES if name in ranks), key=lambda name: ranks[name])
    if final == "average" and candidates.all_past_warmup:
        is_worse = f", although it is worse than {CANDIDATE_NAMES[best]}, which best_on_validation takes"
        return "average", f"checkpoint.final = average{is_worse if best != 'average' else ''}"
    if final == "average":
        return best, (
            "the best on validation, because the last checkpoints reach back into the warm-up "
            f"(schedule.warmup_steps = {warmup_steps})"
        )
    return best, "the best on validation, checkpoint.final = best_on_validation"


def make_final_bundle(trainer: Trainer) -> tuple[Choice, dict[str, Evaluation]]:
    """Compare the candidates, write the chosen one to ``RUN/bundle``, and evaluate it. Collective.

    Args:
        trainer: Has trained to the last update; all its checkpoints are complete.

    Returns:
        How it was chosen, and its evaluations by split.

    Raises:
        StorageError: The bundle could not be written, or the checkpoints not be read, although it was tried again.
        StopRequested: The run was stopped in the meantime.
    """
    session, tracker, step, config = trainer.session, trainer.tracker, trainer.state.step, trainer.config
    world, retry, folder = session.world, trainer.checkpoints.retry_policy(step), trainer.checkpoints.folder
    average, bundle = folder.run / ".bundle.average", folder.run / "bundle"
    comparison = _Comparison(trainer, retry)
    session.finish_updates()
    session.enter("the final average")
    try:
        candidates = retry.run(  # on rank 0 only, as network file systems may lag elsewhere
            "the average of the checkpoints",
            lambda: world.compute_on_rank0(partial(prepare_candidates, folder, config, *comparison.how, average)),
        )
        choice = _choose(trainer, candidates, comparison.score(candidates), comparison)
        _warn_of_a_better_one(choice, world)
        write = partial(candidates.write, choice.chosen, bundle, {"final": asdict(choice)})
        retry.run("the final bundle", lambda: world.compute_on_rank0(write))
    finally:
        if world.is_rank0:
            shutil.rmtree(average, ignore_errors=True)
    session.enter("final evaluation of the bundle")
    evaluations = comparison.evaluate_bundle(bundle, candidates.steps(choice.chosen))
    tracker.emit(BundleSaved(bundle, step, {f"final_{name}": done for name, done in evaluations.items()}))

    def flush() -> None:
        with world.collective_errors(), storage_errors(folder.run, full=ROOM_ADVICE):
            tracker.flush()

    retry.run("the last lines of metrics.jsonl", flush)  # they say that the run is complete
    return choice, evaluations


class _Comparison:
    """Scores candidates on validation, each set of weights once."""

    def __init__(self, trainer: Trainer, retry: RetryPolicy) -> None:
        self._trainer, self._retry = trainer, retry
        self._sentences = trainer.config.validation.final_sentences
        validation = trainer.experiment.corpus.split("validation")
        self.metric = trainer.validator.score_name(validation, self._sentences)
        self.how = self.metric, trainer.validator.signature(validation)
        self._evaluations: dict[Steps, Evaluation] = {}
        last = trainer.evaluation
        if last is not None and last.main.name == self.metric:  # it covers the same sentences
            self._evaluations[trainer.state.step,] = last

    def score(self, candidates: Candidates) -> dict[str, float]:
        """The scores of the candidates by name. Collective."""
        scores = dict(candidates.known)
        for name in candidates.checkpoints:
            self._trainer.session.enter(f"final evaluation of {name}")
            steps = candidates.steps(name)
            if steps not in scores:
                self._load(f"the evaluation of {CANDIDATE_NAMES[name]}", candidates.bundle(name))
                self._evaluations[steps] = self._trainer.evaluate(_name(name, steps), "validation", self._sentences)
                scores[steps] = self._evaluations[steps].main.value
        return {name: scores[candidates.steps(name)] for name in candidates.checkpoints}

    def evaluate_bundle(self, bundle: Path, steps: Steps) -> dict[str, Evaluation]:
        """Evaluate the final bundle on validation and test, for German also as the paper does. Collective."""
        evaluations = {"validation": self._evaluations[steps]} if steps in self._evaluations else {}
        corpus = self._trainer.experiment.corpus
        missing = [name for name in ("validation", "test") if name in corpus.splits and name not in evaluations]
        if missing:
            self._load("the evaluation of the bundle", bundle)
        for name in missing:
            evaluations[name] = self._trainer.evaluate("the bundle", name, self._sentences)
        language = corpus.manifest.tgt_lang
        return self._trainer.session.until_stopped(
            lambda: {
                name: add_paper_bleu(evaluation, corpus.split(name), language)
                for name, evaluation in evaluations.items()
            }
        )

    def _load(self, what: str, bundle: Path) -> None:
        """Load the weights of a bundle. Collective."""

        def read() -> dict[str, Tensor]:
            with self._trainer.session.world.collective_errors():
                if not os.path.isdir(bundle):  # noqa: PTH112  # Path.is_dir may raise
                    raise StorageError(f"cannot read {bundle}: it is gone; mount its disk again")
                return open_bundle(bundle).load_weights()

        self._trainer.validator.load(self._retry.run(what, read).items())


def _choose(trainer: Trainer, candidates: Candidates, scores: dict[str, float], comparison: _Comparison) -> Choice:
    config, metric, start = trainer.config, comparison.metric, trainer.checkpoints.start_score
    ranks = {name: Score(metric, value).rank for name, value in scores.items()}
    chosen, reason = choose(config.checkpoint.final, candidates, ranks, config.schedule.warmup_steps)
    steps = {name: list(candidates.steps(name)) for name in scores}
    if start is not None and (start.name, start.signature) == comparison.how:
        scores = {**scores, START: start.value}
    return Choice(chosen, reason, metric, scores, steps)


def _warn_of_a_better_one(choice: Choice, world: World) -> None:
    ranks = {name: Score(choice.metric, value).rank for name, value in choice.scores.items()}
    best = max((name for name in ranks if name != START), key=lambda name: ranks[name])
    advice = {best: "checkpoint.final=best_on_validation would choose that one"}
    advice[START] = "a lower schedule.peak or fewer updates change the model less"
    for better, what_to_do in advice.items():
        if ranks.get(better, -math.inf) > ranks[choice.chosen] and world.is_rank0:
            chosen = choice.describe(choice.chosen)
            logger.warning("%s is worse than %s; %s", chosen, choice.describe(better), what_to_do)
