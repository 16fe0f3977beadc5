"""The tracker interface. Rank 0 has the trackers of a run; all other ranks have a ``NullTracker``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dstransformer.config import Config
from dstransformer.corpus import Manifest
from dstransformer.evaluation import Evaluation

logger = logging.getLogger(__name__)

RunStatus = Literal["finished", "failed", "killed"]


@dataclass(frozen=True)
class RunStart:
    """The facts known at the start of a run.

    Attributes:
        run_name: The name given by the user; None lets the tracker choose one.
        config: The experiment.
        ds_config: The complete DeepSpeed configuration.
        manifest: The manifest of the corpus.
        corpus: The folder of the corpus.
        tags: Versions and hardware; ``git_revision`` is also the run's source version in MLflow.
        user_tags: Tags of the user's own.
        register: The registered model in MLflow of which the final bundle becomes a version; None for none.
        resume_step: The update of the checkpoint that the run resumes from; None for a new run.
    """

    run_name: str | None
    config: Config
    ds_config: Mapping[str, Any]
    manifest: Manifest
    corpus: Path
    tags: Mapping[str, str] = field(default_factory=dict)
    user_tags: Mapping[str, str] = field(default_factory=dict)
    resume_step: int | None = None
    register: str | None = None


@dataclass(frozen=True)
class BadUpdate:
    """An update whose loss or gradient is NaN or infinite.

    Attributes:
        step: Its number.
        epoch: Where it is in the data: the epoch, from 0,
        update: and its place in the window, from 0.
        skipped: Whether the gradient was not finite, so that the update changed nothing; else only the loss was not.
        in_a_row: The number of such updates in a row, up to this one.
        pairs: Numbers of its sentence pairs in the training split, from 0: those of the micro-batches whose loss was
            not finite, or all if every loss was.
        window: Its window within the epoch, from 0.
    """

    step: int
    epoch: int
    update: int
    skipped: bool
    in_a_row: int
    pairs: Sequence[int]
    window: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "pairs": list(self.pairs)}


@dataclass(frozen=True)
class Rollback:
    """Training diverged and went back to a checkpoint.

    Attributes:
        number: The so manieth time.
        reason: What happened, in a line.
        diverged_at: The last update before it went back.
        step: The update of the checkpoint.
        passed_over: From where to where in the data nothing is learned: epoch and update of the first, and of the next
            one that is.
        bad_updates: The updates since that checkpoint whose loss or gradient was not finite.
        windows: The windows of these two places.
    """

    number: int
    reason: str
    diverged_at: int
    step: int
    passed_over: tuple[tuple[int, int], tuple[int, int]]
    bad_updates: Sequence[BadUpdate]
    windows: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        bad = [update.to_json() for update in self.bad_updates]
        return {
            **asdict(self),
            "passed_over": [list(place) for place in self.passed_over],
            "windows": list(self.windows),
            "bad_updates": bad,
        }


class Tracker:
    """Receives the events of a run. The methods of this base class do nothing; trackers override the ones they need.

    Metric names are short and flat (``loss``, ``lr``, ``tokens_per_second``). Steps count updates.
    """

    #: The name used in warnings.
    name = "the tracker"

    def start(self, run: RunStart) -> None:
        """The run starts or resumes."""

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the training metrics since the last call."""

    def log_eval(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Log an evaluation of a held-out ``split``: ``valid``. Final scores come with ``log_bundle``."""

    def log_cost(self, step: int, totals: Mapping[str, float]) -> None:
        """Log what all updates so far have cost: ``flops``, ``pflop_days``, ``device_hours``."""

    def log_bad_update(self, update: BadUpdate) -> None:
        """Log an update whose loss or gradient is not finite."""

    def log_rollback(self, rollback: Rollback) -> None:
        """Log that training diverged and went back. Further calls have the numbers of updates after the checkpoint."""

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """Log a complete checkpoint. ``sha256`` is the hash of its manifest, ``score`` the score it is ranked by."""

    def log_unsaved(self, step: int, what: str, reason: str) -> None:
        """Log what the disk refused to save after an update: ``checkpoint``, ``the final bundle``; and why."""

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Log the final bundle of the run and its evaluations by split (``final_validation``, ``final_test``)."""

    def settle(self) -> None:
        """Write what still waits for a disk.

        Raises:
            OSError: The disk refuses it.
        """

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def finish(self, status: RunStatus) -> None:
        """The run ends; no other method is called after this."""


class NullTracker(Tracker):
    """Ignores every event."""


class FanOut(Tracker):
    """Forwards every event to several trackers.

    If a tracker fails, this is logged once, and neither the other trackers nor training stop. A tracker that fails in
    ``start`` receives no further events.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)
        self._failed: list[Tracker] = []

    def start(self, run: RunStart) -> None:
        """See ``Tracker.start``."""
        self._forward("start", run)

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """See ``Tracker.log_train``."""
        self._forward("log_train", step, metrics)

    def log_eval(self, split: str, step: int, evaluation: Evaluation) -> None:
        """See ``Tracker.log_eval``."""
        self._forward("log_eval", split, step, evaluation)

    def log_cost(self, step: int, totals: Mapping[str, float]) -> None:
        """See ``Tracker.log_cost``."""
        self._forward("log_cost", step, totals)

    def log_bad_update(self, update: BadUpdate) -> None:
        """See ``Tracker.log_bad_update``."""
        self._forward("log_bad_update", update)

    def log_rollback(self, rollback: Rollback) -> None:
        """See ``Tracker.log_rollback``."""
        self._forward("log_rollback", rollback)

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """See ``Tracker.log_checkpoint``."""
        self._forward("log_checkpoint", path, sha256, step, score)

    def log_unsaved(self, step: int, what: str, reason: str) -> None:
        """See ``Tracker.log_unsaved``."""
        self._forward("log_unsaved", step, what, reason)

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """See ``Tracker.log_bundle``."""
        self._forward("log_bundle", bundle, step, evaluations)

    def settle(self) -> None:
        """See ``Tracker.settle``. The error of a tracker is raised once all have been asked."""
        errors = []
        for tracker in self._trackers:
            try:
                tracker.settle()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def say(self, line: str) -> None:
        """See ``Tracker.say``."""
        self._forward("say", line)

    def finish(self, status: RunStatus) -> None:
        """See ``Tracker.finish``."""
        self._forward("finish", status)

    def _forward(self, method: str, *args: object, **kwargs: object) -> None:
        for tracker in tuple(self._trackers):
            try:
                getattr(tracker, method)(*args, **kwargs)
            except Exception as error:
                if tracker not in self._failed:
                    self._failed.append(tracker)
                    logger.warning(
                        "%s failed, training continues without it: %s",
                        tracker.name,
                        _reason(error),
                    )
                if method == "start":
                    self._trackers.remove(tracker)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
