"""The events of a run, and the trackers that receive them. Steps count updates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dstransformer.config import Config
from dstransformer.data import Manifest
from dstransformer.evaluation import Evaluation

logger = logging.getLogger(__name__)

RunStatus = Literal["finished", "failed", "killed"]


@dataclass(frozen=True)
class RunStart:
    """The run starts or resumes.

    Attributes:
        run_name: The name given by the user; None lets the tracker choose one.
        config: The configuration.
        ds_config: The complete DeepSpeed configuration.
        manifest: The manifest of the corpus.
        corpus: The folder of the corpus.
        tags: Versions and hardware; ``git_revision`` is also the run's source version in MLflow.
        user_tags: The user's own tags.
        resume_step: The update of the checkpoint that the run resumes from; None for a new run.
        register: The registered model in MLflow of which the final bundle becomes a version; None for none.
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
class UpdateDone:
    """An update was computed, of ``tokens`` source and target tokens over all ranks."""

    step: int
    tokens: int


@dataclass(frozen=True)
class TrainingProgress:
    """The training metrics since the last event of this kind: ``loss``, ``lr``, ``epoch`` (from 1)."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class EvaluationProgress:
    """Of ``sentences`` that are translated to evaluate something, such as ``the average on validation``, some are."""

    name: str
    done: int
    sentences: int


@dataclass(frozen=True)
class EvaluationDone:
    """A held-out ``split`` was evaluated: ``valid``. Final scores come with ``BundleSaved``."""

    split: str
    step: int
    evaluation: Evaluation


@dataclass(frozen=True)
class CostTotal:
    """The cost of all updates so far: ``flops``, ``pflop_days``, ``device_hours``, ``overall_tokens_per_second``."""

    step: int
    totals: Mapping[str, float]


def format_cost(totals: Mapping[str, float]) -> str:
    """The totals of ``CostTotal`` as text: ``1.23e+18 FLOPs (0.0142 PFLOP-days), 12.3 device hours``."""
    return (
        f"{totals['flops']:.3g} FLOPs ({totals['pflop_days']:.3g} PFLOP-days), "
        f"{totals['device_hours']:.3g} device hours"
    )


@dataclass(frozen=True)
class NonfiniteUpdate:
    """The loss or gradient of an update is NaN or infinite.

    Attributes:
        step: The number of the update.
        epoch: Its epoch, from 0.
        update: Its index in the window, from 0.
        skipped: Whether the gradient was not finite, so that the update was skipped; else only the loss was not.
        consecutive: The number of consecutive updates of this kind, including this one.
        pairs: Numbers of its sentence pairs in the training split, from 0: those of the micro-batches whose loss was
            not finite, or all pairs if every loss was finite.
        window: Its window within the epoch, from 0.
    """

    step: int
    epoch: int
    update: int
    skipped: bool
    consecutive: int
    pairs: Sequence[int]
    window: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data with the keys that files use."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "update": self.update,
            "skipped": self.skipped,
            "in_a_row": self.consecutive,
            "pairs": list(self.pairs),
            "window": self.window,
        }


@dataclass(frozen=True)
class Rollback:
    """Training diverged and was rolled back to a checkpoint. Steps of later events follow that of the checkpoint.

    Attributes:
        number: 1-based count of the rollbacks of the run.
        reason: What happened, in one line.
        diverged_at: The last update before the rollback.
        step: The update of the checkpoint.
        skipped_range: The skipped range of the data: epoch and update of its start and of its end.
        nonfinite_updates: The updates since that checkpoint whose loss or gradient was not finite.
        windows: The windows of the range's start and end.
    """

    number: int
    reason: str
    diverged_at: int
    step: int
    skipped_range: tuple[tuple[int, int], tuple[int, int]]
    nonfinite_updates: Sequence[NonfiniteUpdate]
    windows: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """Plain data with the keys that files use."""
        return {
            "number": self.number,
            "reason": self.reason,
            "diverged_at": self.diverged_at,
            "step": self.step,
            "passed_over": [list(position) for position in self.skipped_range],
            "bad_updates": [update.to_json() for update in self.nonfinite_updates],
            "windows": list(self.windows),
        }


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is complete. ``sha256`` is the hash of its manifest, ``score`` the score it is ranked by."""

    path: Path
    sha256: str
    step: int
    score: float | None


@dataclass(frozen=True)
class SaveFailed:
    """Something could not be saved after an update: ``checkpoint``, ``the final bundle``."""

    step: int
    what: str
    reason: str


@dataclass(frozen=True)
class BundleSaved:
    """The final bundle of the run, and its evaluations by split (``final_validation``, ``final_test``)."""

    bundle: Path
    step: int
    evaluations: Mapping[str, Evaluation]


@dataclass(frozen=True)
class Message:
    """A line for the user."""

    line: str


@dataclass(frozen=True)
class RunEnd:
    """The run ends. No event follows."""

    status: RunStatus


Event = (
    RunStart
    | UpdateDone
    | TrainingProgress
    | EvaluationProgress
    | EvaluationDone
    | CostTotal
    | NonfiniteUpdate
    | Rollback
    | CheckpointSaved
    | SaveFailed
    | BundleSaved
    | Message
    | RunEnd
)


class Tracker:
    """Receives the events of a run. This base class ignores them; a tracker handles the ones it needs."""

    #: The name used in warnings.
    name = "the tracker"

    def emit(self, event: Event) -> None:
        """Handle an event."""

    def flush(self) -> None:
        """Write everything that waits in memory for a disk.

        Raises:
            OSError: It cannot be written.
        """


class NullTracker(Tracker):
    """Ignores every event."""


class FanOut(Tracker):
    """Forwards every event to several trackers.

    If a tracker fails, this is logged once, and neither the other trackers nor training stop. A tracker that fails at
    ``RunStart`` receives no further events; one that fails later does, because its disk may have room again.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)
        self._failed: list[Tracker] = []

    def add(self, tracker: Tracker) -> None:
        """Forward the events to one more tracker, which may itself emit events to this one."""
        self._trackers.append(tracker)

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``. Raises no error of a tracker."""
        for tracker in tuple(self._trackers):
            try:
                tracker.emit(event)
            except Exception as error:
                is_start = isinstance(event, RunStart)
                if is_start:
                    self._trackers.remove(tracker)
                if tracker not in self._failed:
                    self._failed.append(tracker)
                    how = " without it" if is_start else ", and later events still go to it"
                    reason = str(error)
                    if isinstance(error, OSError) and error.filename:
                        reason = f"{error.filename}: {error.strerror}"
                    logger.warning("%s failed, training continues%s: %s", tracker.name, how, reason)

    def flush(self) -> None:
        """See ``Tracker.flush``. Flushes every tracker before it raises the error of one."""
        errors = []
        for tracker in self._trackers:
            try:
                tracker.flush()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]
