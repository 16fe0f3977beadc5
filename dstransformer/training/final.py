"""Chooses the final bundle of a run among the average, the last and the best checkpoint, by validation score.

The paper averages the last checkpoints (section 6.1). In a short run the average may include models from the warm-up
and be far worse than the last checkpoint, so all candidates are scored.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.checkpoints.averaging import annotate_bundle, past_warmup, write_average
from dstransformer.checkpoints.format import Checkpoint
from dstransformer.checkpoints.retention import CheckpointFolder, periodic, rank_by_score
from dstransformer.config import Config
from dstransformer.corpus import Corpus
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World
from dstransformer.errors import DataError, StorageError
from dstransformer.evaluation import Evaluation
from dstransformer.evaluation.task import Task
from dstransformer.evaluation.validation import Validator, add_paper_bleu, score_name
from dstransformer.io.files import ROOM_ADVICE, storage_errors
from dstransformer.model import open_bundle
from dstransformer.tracking import BundleSaved, Message, Tracker

if TYPE_CHECKING:
    from dstransformer.training.trainer import Trainer

logger = logging.getLogger(__name__)

Steps = tuple[int, ...]

#: The candidates and their names in messages. On a tie, the earlier one wins.
CANDIDATE_NAMES = {"average": "the average", "last": "the last checkpoint", "best": "the best checkpoint"}


@dataclass(frozen=True)
class Choice:
    """Which candidate became the final bundle, and why.

    Attributes:
        chosen: ``average``, ``last`` or ``best``.
        reason: The reason, for messages.
        metric: The validation score used to compare the candidates: ``bleu``, ``bleu_first_500``, ``f1``.
        scores: The score of each candidate, by name.
        steps: The steps of the checkpoints that each candidate averages, by name.
    """

    chosen: str
    reason: str
    metric: str
    scores: dict[str, float]
    steps: dict[str, list[int]]

    def name(self, candidate: str) -> str:
        """A candidate as text: ``the average of steps 4, 8, 12``."""
        steps = self.steps[candidate]
        if len(steps) > 1:
            return f"{CANDIDATE_NAMES[candidate]} of steps {', '.join(map(str, steps))}"
        return f"{CANDIDATE_NAMES[candidate]} (step {steps[0]})"

    def describe(self, candidate: str) -> str:
        """A candidate as text, with its score."""
        return f"{self.name(candidate)} {self.metric} {self.scores[candidate]:.2f}"

    def lines(self) -> list[str]:
        """Lines of text with all scores and the choice."""
        compared = "; ".join(map(self.describe, self.scores))
        return [f"on validation: {compared}", f"the bundle is {self.name(self.chosen)}: {self.reason}"]


@dataclass(frozen=True)
class Candidates:
    """The candidates for the final bundle.

    Attributes:
        checkpoints: The checkpoints of each candidate, by name, oldest first. There is no average if no checkpoint is
            past the warm-up.
        all_past_warmup: Whether the whole window of the average (the last ``average_last`` checkpoints, or fewer if
            there are not as many) is past the warm-up.
        known: Scores that need not be computed again, by the steps of the candidate.
    """

    checkpoints: dict[str, list[Checkpoint]]
    all_past_warmup: bool
    known: dict[Steps, float]

    def steps(self, name: str) -> Steps:
        """The steps of a candidate's checkpoints."""
        return tuple(checkpoint.state.step for checkpoint in self.checkpoints[name])


def find_candidates(
    checkpoints: Sequence[Checkpoint], config: Config, is_known: Callable[[Checkpoint], bool]
) -> Candidates:
    """Find the candidates among the checkpoints of a run.

    Args:
        checkpoints: The checkpoints of the run, oldest first; at least one.
        config: The configuration of the run.
        is_known: Whether a checkpoint's score was computed on the same sentences with the same search.
    """
    window = periodic(checkpoints)[-config.checkpoint.average_last :]
    averaged = past_warmup(window, config.schedule.warmup_steps)
    found = {"average": averaged, "last": [checkpoints[-1]], "best": rank_by_score(checkpoints)[:1]}
    candidates = {name: list(members) for name, members in found.items() if members}
    singles = {members[0].state.step: members[0] for members in candidates.values() if len(members) == 1}
    known: dict[Steps, float] = {(step,): c.score for step, c in singles.items() if c.score is not None and is_known(c)}
    return Candidates(candidates, len(averaged) == len(window), known)


def choose(final: str, candidates: Candidates, scores: Mapping[str, float], warmup_steps: int) -> tuple[str, str]:
    """Choose the candidate that becomes the bundle.

    Args:
        final: The value of ``checkpoint.final``.
        candidates: The candidates.
        scores: The score of each candidate, by name. On a tie, the first in ``CANDIDATE_NAMES`` wins.
        warmup_steps: The value of ``schedule.warmup_steps``.

    Returns:
        The name of the candidate, and the reason.
    """
    if final == "average" and candidates.all_past_warmup:
        return "average", "checkpoint.final = average"
    best = max((name for name in CANDIDATE_NAMES if name in scores), key=lambda name: scores[name])
    if final == "average":
        return best, (
            "the best on validation, because the last checkpoints reach back into the warm-up "
            f"(schedule.warmup_steps = {warmup_steps})"
        )
    return best, "the best on validation, checkpoint.final = best_on_validation"


@dataclass(frozen=True)
class FinalBundle:
    """The final bundle of a run.

    Attributes:
        choice: How it was chosen.
        evaluations: Its evaluations, by split.
    """

    choice: Choice
    evaluations: dict[str, Evaluation]


def make_final_bundle(trainer: Trainer) -> FinalBundle | None:
    """Compare the candidates, write the chosen one to ``RUN/bundle``, and evaluate it. Collective.

    Args:
        trainer: Has trained to the last update; all its checkpoints are complete.

    Returns:
        The bundle; None if the run was stopped in the meantime.

    Raises:
        StorageError: The bundle could not be written, or the checkpoints not be read, although it was tried again.
    """
    session, tracker, step = trainer.session, trainer.tracker, trainer.state.step
    world, retry = session.world, trainer.checkpoints.retry_policy(step)
    session.enter("the final average")
    comparison = _Comparison(trainer.corpus, trainer.config.validation.final_sentences, world, trainer.validator)
    if trainer.evaluation is not None:
        comparison.add(step, trainer.evaluation)
    folder = trainer.checkpoints.folder
    average, bundle = folder.run / ".bundle.average", folder.run / "bundle"
    try:
        candidates = retry.run(
            "the average of the checkpoints",
            lambda: _find_candidates(folder, trainer.config, comparison, average, world),
        )
        if candidates is None:
            return None
        scores = _score(candidates, comparison, average, session)
        if scores is None:
            return None
        choice = _choose(trainer.config, candidates, scores, comparison.metric)
        _report(choice, tracker, world)
        chosen = candidates.checkpoints[choice.chosen]
        if not retry.run("the final bundle", lambda: _write_bundle(chosen, choice, average, bundle, world)):
            return None
    finally:
        if world.is_rank0:
            shutil.rmtree(average, ignore_errors=True)
    if session.should_stop():
        return None
    session.enter("final evaluation of the bundle")
    evaluations = comparison.evaluate_bundle(bundle, candidates.steps(choice.chosen))
    tracker.emit(BundleSaved(bundle, step, {f"final_{split}": found for split, found in evaluations.items()}))
    # The last lines say that the run is complete.
    flushed = retry.run("the last lines of metrics.jsonl", lambda: _flush(tracker, folder.run, world))
    return FinalBundle(choice, evaluations) if flushed else None


def _score(candidates: Candidates, comparison: _Comparison, average: Path, session: Session) -> dict[str, float] | None:
    """The scores of the candidates by name; None if the run was stopped in the meantime."""
    scores: dict[str, float] = {}
    for name, members in candidates.checkpoints.items():
        if session.should_stop():
            return None
        session.enter(f"final evaluation of {name}")
        scores[name] = comparison.score(candidates, name, average if len(members) > 1 else members[0].bundle)
    return scores


def _flush(tracker: Tracker, run: Path, world: World) -> bool:
    """Write everything that was logged to the disk. Collective; returns True."""
    with world.collective_errors(), storage_errors(run, full=ROOM_ADVICE):
        tracker.flush()
    return True


class _Comparison:
    """Scores candidates on validation, each set of weights once."""

    def __init__(self, corpus: Corpus, sentences: int, world: World, validator: Validator) -> None:
        self._corpus = corpus
        self._world = world
        self._validator = validator
        self._sentences = sentences
        self.metric = score_name(Task(corpus.manifest.trees).metric, sentences, len(corpus.split("validation")))
        self._evaluations: dict[Steps, Evaluation] = {}

    def add(self, step: int, evaluation: Evaluation) -> None:
        """Reuse an evaluation of the weights after an update, if it covers the same sentences."""
        if evaluation.main.name == self.metric:
            self._evaluations[step,] = evaluation

    def score(self, candidates: Candidates, name: str, bundle: Path) -> float:
        """The score of a candidate with its weights in ``bundle``; computed if not known. Collective."""
        steps = candidates.steps(name)
        if steps not in candidates.known:
            self._load(bundle)
            self._evaluations[steps] = self._validator.evaluate(self._corpus.split("validation"), self._sentences)
            candidates.known[steps] = self._evaluations[steps].main.value
        return candidates.known[steps]

    def evaluate_bundle(self, bundle: Path, steps: Steps) -> dict[str, Evaluation]:
        """Evaluate the final bundle on validation and test, for German also as the paper does. Collective."""
        evaluations = {"validation": self._evaluations[steps]} if steps in self._evaluations else {}
        missing = [name for name in ("validation", "test") if name in self._corpus.splits and name not in evaluations]
        if missing:
            self._load(bundle)
        for name in missing:
            evaluations[name] = self._validator.evaluate(self._corpus.split(name), self._sentences)
        language = self._corpus.manifest.tgt_lang
        return {name: add_paper_bleu(found, self._corpus.split(name), language) for name, found in evaluations.items()}

    def _load(self, bundle: Path) -> None:
        with self._world.collective_errors():
            if not bundle.is_dir():
                raise StorageError(f"cannot read {bundle}: it is gone; mount its disk again")
            weights = open_bundle(bundle).load_weights()
        self._validator.load(weights.items())


def _find_candidates(
    folder: CheckpointFolder, config: Config, comparison: _Comparison, average: Path, world: World
) -> Candidates:
    """Find the candidates and write the average. Rank 0 only, as network file systems may lag elsewhere. Collective."""

    def is_known(checkpoint: Checkpoint) -> bool:
        same_search = open_bundle(checkpoint.bundle).decoding == config.decoding
        return same_search and checkpoint.metric == comparison.metric

    def find() -> Candidates:
        found = find_candidates(_intact_checkpoints(folder), config, is_known)
        members = found.checkpoints.get("average", ())
        if len(members) > 1:
            with storage_errors(average, full=ROOM_ADVICE):
                write_average(members, average, full=ROOM_ADVICE)
        return found

    return world.compute_on_rank0(find)


def _intact_checkpoints(folder: CheckpointFolder) -> list[Checkpoint]:
    """The checkpoints whose weights match their hashes, oldest first; a run ends without those that a disk has damaged.

    Raises:
        DataError: All are damaged.
        StorageError: There are none, or they cannot be read now.
    """
    intact: list[Checkpoint] = []
    damage: DataError | None = None
    for checkpoint in folder.checkpoints():
        try:
            open_bundle(checkpoint.bundle).verify_weights()
        except DataError as error:
            reason = error.__context__
            if isinstance(reason, OSError) and not isinstance(reason, FileNotFoundError):
                raise StorageError(str(error)) from None  # reading it again may work
            logger.warning("%s; the final bundle is made without this checkpoint", error)
            damage = error
        else:
            intact.append(checkpoint)
    if intact:
        return intact
    if damage is not None:
        raise damage
    raise StorageError(f"cannot read {folder.path}: the checkpoints are gone; mount their disk again")


def _choose(config: Config, candidates: Candidates, scores: dict[str, float], metric: str) -> Choice:
    chosen, reason = choose(config.checkpoint.final, candidates, scores, config.schedule.warmup_steps)
    return Choice(chosen, reason, metric, scores, {name: list(candidates.steps(name)) for name in scores})


def _report(choice: Choice, tracker: Tracker, world: World) -> None:
    for line in choice.lines():
        tracker.emit(Message(line))
    better = [name for name in choice.scores if choice.scores[name] > choice.scores.get("average", float("inf"))]
    if better and world.is_rank0:
        best = max(better, key=lambda name: choice.scores[name])
        advice = "; checkpoint.final=best_on_validation would choose that one" if choice.chosen == "average" else ""
        logger.warning(
            "on validation, %s is worse than %s%s", choice.describe("average"), choice.describe(best), advice
        )


def _write_bundle(members: Sequence[Checkpoint], choice: Choice, average: Path, bundle: Path, world: World) -> bool:
    """Write the bundle; returns True. Collective."""
    provenance = {"final": asdict(choice)}
    with world.collective_errors():
        if world.is_rank0 and len(members) > 1:
            annotate_bundle(average, bundle, provenance, full=ROOM_ADVICE)
        elif world.is_rank0:
            write_average(members, bundle, provenance, full=ROOM_ADVICE)
    return True
