"""How a run saves on disks that fail: it goes on training, tries again after a while, and insists at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from dstransformer.checkpoints.format import Snapshot, TrainState
from dstransformer.checkpoints.saver import Saver
from dstransformer.config import CheckpointConfig
from dstransformer.distributed.world import World
from dstransformer.errors import StorageError, counted
from dstransformer.evaluation import Score
from dstransformer.tracking import SaveFailed, Tracker

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How often the end of a run tries to write something, ``checkpoint.retry_seconds`` apart.
LAST_TRIES = 5

_LOOK_SECONDS = 1.0  # between two looks for a stop signal, while the end of a run waits for the disk


class Insistence:
    """Writes what the end of a run must write, several times if the disk refuses. Collective.

    Args:
        seconds: Seconds between two tries.
        step: Number of updates, for messages.
        is_stopped: Collective; whether the run shall stop waiting.
        world: The process group.
        tracker: Learns what was not saved.
    """

    def __init__(
        self, seconds: float, step: int, is_stopped: Callable[[], bool], world: World, tracker: Tracker
    ) -> None:
        self._seconds = seconds
        self._step = step
        self._is_stopped = is_stopped
        self._world = world
        self._tracker = tracker

    def on(self, what: str, attempt: Callable[[], T]) -> T | None:
        """Do something until the disk takes it.

        Args:
            what: What is written, for messages: ``the last checkpoint``.
            attempt: Collective; raises StorageError on all ranks if the disk of any rank refuses.

        Returns:
            What ``attempt`` returns; None if the run was stopped while it waited for the disk.

        Raises:
            StorageError: The disk has refused ``LAST_TRIES`` times.
        """
        for left in reversed(range(LAST_TRIES)):
            try:
                return attempt()
            except StorageError as error:
                self._tracker.emit(SaveFailed(self._step, what, str(error)))
                if not left:
                    failure = StorageError(f"{what} could not be saved, in {LAST_TRIES} tries: {error}")
                    failure.shared = True
                    raise failure from error
                if self._world.is_rank0:
                    logger.warning(
                        "%s could not be saved: %s; the run tries again in %g s, %s at most",
                        what, error, self._seconds, counted(left, "time"),
                    )  # fmt: skip
                if self._is_stopped_waiting():
                    return None
        raise AssertionError  # the last try returns or raises

    def _is_stopped_waiting(self) -> bool:
        until = time.monotonic() + self._seconds
        while self._world.any(time.monotonic() < until)[0]:
            if self._is_stopped():
                return True
            time.sleep(max(0.0, min(_LOOK_SECONDS, until - time.monotonic())))
        return False


class Saves:
    """The checkpoints of a run: when the clock makes one due, and what becomes of one that the disk refuses.

    Args:
        saver: Writes them.
        config: When they are due.
        world: The process group.
        tracker: Learns what was not saved.
    """

    def __init__(self, saver: Saver, config: CheckpointConfig, world: World, tracker: Tracker) -> None:
        self._saver = saver
        self._config = config
        self._world = world
        self._tracker = tracker
        self._newest: tuple[int, bool] | None = None  # step of the newest checkpoint, and whether it has a score
        self._began = time.monotonic()  # when the newest was begun
        self._retry_at: float | None = None
        self._refusal: StorageError | None = None
        self._has_saved = False

    @property
    def is_writing(self) -> bool:
        """Whether this rank's part of a checkpoint is still being written."""
        return self._saver.is_writing

    @property
    def is_due(self) -> bool:
        """Whether the clock of this rank makes a checkpoint due: ``every_minutes``, or a refused one's next try."""
        now, minutes = time.monotonic(), self._config.every_minutes
        return (minutes > 0 and now - self._began >= 60.0 * minutes) or (
            self._retry_at is not None and now >= self._retry_at
        )

    def restart(self, newest: tuple[int, bool] | None) -> None:
        """Training goes on from a checkpoint: its step, and whether it has a score; None if another run's."""
        self._newest = newest
        self._began = time.monotonic()

    def begin(
        self, take_snapshot: Callable[[], Snapshot], state: TrainState, score: Score | None, *, interim: bool = False
    ) -> None:
        """Start writing a checkpoint; ``interim`` if only a request to stop brings it about. Collective.

        Raises:
            DivergedError: A weight of the checkpoint before is not finite.
        """
        self.finish()
        self._began, self._retry_at = time.monotonic(), None
        try:
            self._begin(take_snapshot, state, score, interim=interim)
        except StorageError as error:
            self.note_refusal(state.step, error)

    def finish(self) -> None:
        """Complete the checkpoint that is being written, if any. Collective.

        Raises:
            DivergedError: A weight of it is not finite.
        """
        step = 0 if self._newest is None else self._newest[0]
        try:
            self._finish()
        except StorageError as error:
            self._newest = None
            self.note_refusal(step, error)

    def note_refusal(self, step: int, error: StorageError) -> None:
        """The disk has refused the checkpoint of an update: say so, and try again after a while."""
        self._refusal = error
        self._retry_at = time.monotonic() + self._config.retry_seconds
        self._tracker.emit(SaveFailed(step, "checkpoint", str(error)))
        if self._world.is_rank0:
            logger.warning(
                "the checkpoint of update %d could not be saved: %s; training goes on, and saves again in %g s or when "
                "the next checkpoint is due",
                step, error, self._config.retry_seconds,
            )  # fmt: skip

    def check_not_in_vain(self) -> None:
        """At a stop: check that this process could save anything at all.

        Raises:
            StorageError: The disk has refused every checkpoint.
        """
        if self._refusal is not None and not self._has_saved:
            raise self._refusal

    def save_last(
        self,
        take_snapshot: Callable[[], Snapshot],
        state: TrainState,
        score: Score | None,
        insistence: Insistence,
    ) -> bool:
        """Make sure that the checkpoint of the last update is complete and has its score. Collective.

        Returns:
            False if the run was stopped while it waited for the disk.

        Raises:
            StorageError: It could not be saved.
            DivergedError: A weight is not finite.
        """

        def attempt() -> bool:
            try:
                if self._newest != (state.step, score is not None):
                    self._begin(take_snapshot, state, score)
                self._finish()
            except StorageError as error:
                self._newest, self._refusal = None, error
                raise
            return True

        return insistence.on("the last checkpoint", attempt) is not None

    def _begin(
        self, take_snapshot: Callable[[], Snapshot], state: TrainState, score: Score | None, *, interim: bool = False
    ) -> None:
        self._saver.begin(take_snapshot, state, score, interim=interim)
        self._newest = (state.step, score is not None)

    def _finish(self) -> None:
        if self._saver.finish():
            self._has_saved = True
