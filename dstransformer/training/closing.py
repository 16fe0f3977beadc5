"""The end of a run: which weights become its bundle, and what they score.

The paper averages the last checkpoints (section 6.1). Of a short run the average may hold models from the warm-up and
be far worse than its last one, so average, last and best checkpoint are compared on validation.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dstransformer.config import Config
from dstransformer.corpus import Corpus
from dstransformer.model import open_bundle
from dstransformer.tracking import Evaluation, Tracker
from dstransformer.training.averaging import annotate_bundle, past_warmup, write_average
from dstransformer.training.checkpoint import Checkpoint, CheckpointFolder, by_score
from dstransformer.training.storage import storage_errors
from dstransformer.training.validation import Validator, score_name
from dstransformer.training.world import World

logger = logging.getLogger(__name__)

Steps = tuple[int, ...]

#: The candidates, in the order of preference among equals; and what each is called.
NAMES = {"average": "the average", "last": "the last checkpoint", "best": "the best checkpoint"}


@dataclass(frozen=True)
class Choice:
    """What the bundle of a run is, and why.

    Attributes:
        chosen: ``average``, ``last`` or ``best``.
        reason: In words.
        metric: By which the candidates were compared on validation: ``bleu``, ``bleu_first_500``.
        scores: Of each candidate, by name.
        steps: The checkpoints that each candidate is the mean of, by name.
    """

    chosen: str
    reason: str
    metric: str
    scores: dict[str, float]
    steps: dict[str, list[int]]

    def name(self, candidate: str) -> str:
        """A candidate in words: ``the average of steps 4, 8, 12``."""
        steps = self.steps[candidate]
        if len(steps) > 1:
            return f"{NAMES[candidate]} of steps {', '.join(map(str, steps))}"
        return f"{NAMES[candidate]} (step {steps[0]})"

    def describe(self, candidate: str) -> str:
        """A candidate in words, with its score."""
        return f"{self.name(candidate)} {self.metric} {self.scores[candidate]:.2f}"

    def lines(self) -> list[str]:
        """The scores of all, and what was chosen."""
        compared = "; ".join(map(self.describe, self.scores))
        return [f"on validation: {compared}", f"the bundle is {self.name(self.chosen)}: {self.reason}"]


@dataclass(frozen=True)
class Candidates:
    """The checkpoints of each candidate by name, oldest first.

    Attributes:
        checkpoints: By name; there is no average where no checkpoint is past the warm-up.
        whole: The window of the average, ``average_last`` checkpoints or all there are, lies past the warm-up.
        known: Scores that need not be computed again, by the steps of the candidate.
    """

    checkpoints: dict[str, list[Checkpoint]]
    whole: bool
    known: dict[Steps, float]

    def steps(self, name: str) -> Steps:
        """The updates of a candidate's checkpoints."""
        return tuple(checkpoint.state.step for checkpoint in self.checkpoints[name])


def find_candidates(
    checkpoints: Sequence[Checkpoint], config: Config, is_known: Callable[[Checkpoint], bool]
) -> Candidates:
    """What may become the bundle.

    Args:
        checkpoints: Of the run, oldest first, at least one.
        config: Of the run.
        is_known: Whether a checkpoint's score is of the sentences and the search that candidates are compared by.
    """
    window = checkpoints[-config.checkpoint.average_last :]
    averaged = past_warmup(window, config.schedule.warmup_steps)
    found = {"average": averaged, "last": [checkpoints[-1]], "best": by_score(checkpoints)[:1]}
    candidates = {name: list(members) for name, members in found.items() if members}
    singles = {members[0].state.step: members[0] for members in candidates.values() if len(members) == 1}
    known: dict[Steps, float] = {(step,): c.score for step, c in singles.items() if c.score is not None and is_known(c)}
    return Candidates(candidates, len(averaged) == len(window), known)


def choose(final: str, candidates: Candidates, scores: Mapping[str, float], warmup_steps: int) -> tuple[str, str]:
    """The name of the candidate that becomes the bundle, and the reason.

    Args:
        final: ``checkpoint.final``.
        candidates: What there is.
        scores: Of every candidate, by name; of equals the first of ``NAMES`` is preferred.
        warmup_steps: Of the schedule.
    """
    if final == "average" and candidates.whole:
        return "average", "checkpoint.final = average"
    best = max((name for name in NAMES if name in scores), key=lambda name: scores[name])
    if final == "average":
        return best, (
            f"the best on validation, as the last checkpoints reach back into the warm-up (schedule.warmup_steps = "
            f"{warmup_steps})"
        )
    return best, "the best on validation, checkpoint.final = best_on_validation"


class Closing:
    """Compares, chooses, writes the bundle and evaluates it. Every rank holds one; its method is collective.

    Args:
        config: The experiment.
        corpus: Its held-out text.
        run: The run's folder.
        folder: Its checkpoints.
        world: The processes.
        validator: Evaluates weights.
        tracker: Who listens.
    """

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        run: Path,
        folder: CheckpointFolder,
        world: World,
        validator: Validator,
        tracker: Tracker,
    ) -> None:
        self._config = config
        self._corpus = corpus
        self._run = run
        self._folder = folder
        self._world = world
        self._validator = validator
        self._tracker = tracker
        self._average = run / ".bundle.average"
        self._sentences = config.validation.final_sentences
        self._metric = score_name("bleu", self._sentences, len(corpus.split("validation")))
        self._done: dict[Steps, Evaluation] = {}

    def close(
        self, step: int, evaluation: Evaluation | None, is_stopped: Callable[[], bool]
    ) -> tuple[Choice, dict[str, Evaluation]] | None:
        """Make the run's bundle; returns how it was chosen and what it scores, None where the run was stopped before.

        Args:
            step: The last update.
            evaluation: Of its weights on validation, where there was one.
            is_stopped: Asked, collectively, before each evaluation; every checkpoint is complete by now.
        """
        if evaluation is not None and evaluation.bleu[0] == self._metric:
            self._done[step,] = evaluation
        candidates = self._gather_candidates()
        try:
            scores: dict[str, float] = {}
            for name in candidates.checkpoints:
                if is_stopped():
                    return None
                scores[name] = self._score(candidates, name)
            choice = self._choose(candidates, scores)
            self._say(choice)
            self._write(candidates, choice)
        finally:
            if self._world.is_first:
                shutil.rmtree(self._average, ignore_errors=True)
        return None if is_stopped() else (choice, self._evaluate(step, candidates.steps(choice.chosen)))

    def _gather_candidates(self) -> Candidates:
        """Rank 0 looks for them, as a network file system may show others late; it also writes the average aside."""
        found: Candidates | None = None
        with self._world.together():
            if self._world.is_first:
                checkpoints = self._folder.checkpoints()
                found = find_candidates(checkpoints, self._config, self._is_known)
                average = found.checkpoints.get("average", ())
                if len(average) > 1:
                    with storage_errors(self._average):
                        write_average(average, self._average)
        candidates: Candidates = self._world.from_first(found)
        return candidates

    def _is_known(self, checkpoint: Checkpoint) -> bool:
        same_search = open_bundle(checkpoint.bundle).config.decoding == self._config.decoding
        return same_search and checkpoint.metric == self._metric

    def _score(self, candidates: Candidates, name: str) -> float:
        steps = candidates.steps(name)
        if steps not in candidates.known:
            members = candidates.checkpoints[name]
            self._load(self._average if len(members) > 1 else members[0].bundle)
            self._done[steps] = self._validator.evaluate(self._corpus.split("validation"), self._sentences)
            candidates.known[steps] = self._done[steps].bleu[1]
        return candidates.known[steps]

    def _load(self, bundle: Path) -> None:
        with self._world.together():
            weights = open_bundle(bundle).load_weights()
        self._validator.load(weights.items())

    def _choose(self, candidates: Candidates, scores: dict[str, float]) -> Choice:
        warmup_steps = self._config.schedule.warmup_steps
        chosen, reason = choose(self._config.checkpoint.final, candidates, scores, warmup_steps)
        steps = {name: list(candidates.steps(name)) for name in scores}
        return Choice(chosen, reason, self._metric, scores, steps)

    def _say(self, choice: Choice) -> None:
        for line in choice.lines():
            self._tracker.say(line)
        better = [name for name in choice.scores if choice.scores[name] > choice.scores.get("average", float("inf"))]
        if better and self._world.is_first:
            best = max(better, key=lambda name: choice.scores[name])
            advice = "; checkpoint.final=best_on_validation would take that one" if choice.chosen == "average" else ""
            logger.warning("on validation %s loses to %s%s", choice.describe("average"), choice.describe(best), advice)

    def _write(self, candidates: Candidates, choice: Choice) -> None:
        with self._world.together():
            if self._world.is_first:
                members, provenance = candidates.checkpoints[choice.chosen], {"final": asdict(choice)}
                if len(members) > 1:
                    annotate_bundle(self._average, self._run / "bundle", provenance)
                else:
                    write_average(members, self._run / "bundle", provenance)

    def _evaluate(self, step: int, steps: Steps) -> dict[str, Evaluation]:
        bundle = self._run / "bundle"
        evaluations = {"validation": self._done[steps]} if steps in self._done else {}
        missing = [name for name in ("validation", "test") if name in self._corpus.splits and name not in evaluations]
        if missing:
            self._load(bundle)
        for name in missing:
            evaluations[name] = self._validator.evaluate(self._corpus.split(name), self._sentences)
        told = {f"final_{name}": evaluation for name, evaluation in evaluations.items()}
        self._tracker.log_bundle(bundle, step, told)
        return evaluations
