"""Builds the tracker of a process: on rank 0 one that passes events on to several, on other ranks a ``NullTracker``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from dstransformer.config.schema import TrackingConfig
from dstransformer.io.progress import is_quiet
from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.curves import CURVES
from dstransformer.tracking.events import Event, NullTracker, RunStart, Tracker
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLog
from dstransformer.tracking.mlflow.location import resolve_experiment, resolve_tracking_uri
from dstransformer.tracking.mlflow.tracker import MlflowTracker

logger = logging.getLogger(__name__)


def build_tracker(config: TrackingConfig, *, rank: int, run_folder: Path, max_updates: int) -> Tracker:
    """Build the tracker: progress, ``metrics.jsonl`` and, if enabled, MLflow on rank 0; a ``NullTracker`` elsewhere.

    Raises:
        ConfigError: The tracking address is not that of a store; raised on all ranks.
    """
    uri = resolve_tracking_uri(config.uri, run_folder) if config.enabled else None
    if rank != 0:
        return NullTracker()
    console = ConsoleProgress(max_updates)
    trackers: list[Tracker] = [console, MetricsLog(run_folder / METRICS_NAME)]
    if uri is not None:
        experiment = resolve_experiment(config.experiment)
        announce = logger.info if is_quiet() else console.print
        trackers.append(
            MlflowTracker(run_folder, uri, experiment, system_metrics=config.system_metrics, announce=announce)
        )
    trackers += [CURVES[name](run_folder) for name in dict.fromkeys(config.also)]
    return FanOut(trackers)


class FanOut(Tracker):
    """Forwards every event to several trackers.

    If a tracker fails, this is logged once, and neither the other trackers nor training stop. A tracker that fails at
    ``RunStart`` receives no further events; one that fails later does, because its disk may have room again.
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
                is_start = isinstance(event, RunStart)
                if is_start:
                    self._trackers.remove(tracker)
                if tracker not in self._failed:
                    self._failed.append(tracker)
                    how = " without it" if is_start else ", and later events still go to it"
                    logger.warning("%s failed, training continues%s: %s", tracker.name, how, _reason(error))

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
