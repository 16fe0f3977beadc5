"""The tracker interface. Rank 0 has the trackers of a run; all other ranks have a ``NullTracker``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dstransformer.tracking.events import Event, RunStart

logger = logging.getLogger(__name__)


class Tracker:
    """Receives the events of a run. This base class ignores them; a tracker handles the ones it needs."""

    #: The name used in warnings.
    name = "the tracker"

    def emit(self, event: Event) -> None:
        """Handle an event."""

    def flush(self) -> None:
        """Write everything that still waits for a disk.

        Raises:
            OSError: The disk refuses it.
        """


class NullTracker(Tracker):
    """Ignores every event."""


class FanOut(Tracker):
    """Forwards every event to several trackers.

    If a tracker fails, this is logged once, and neither the other trackers nor training stop. A tracker that fails at
    ``RunStart`` receives no further events.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)
        self._failed: list[Tracker] = []

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``. Raises no error of a tracker."""
        for tracker in tuple(self._trackers):
            try:
                tracker.emit(event)
            except Exception as error:
                if tracker not in self._failed:
                    self._failed.append(tracker)
                    logger.warning("%s failed, training continues without it: %s", tracker.name, _reason(error))
                if isinstance(event, RunStart):
                    self._trackers.remove(tracker)

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


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
