"""Builds the tracker of a process from its rank and the configuration."""

from __future__ import annotations

from pathlib import Path

from dstransformer.config import TrackingConfig
from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLog
from dstransformer.tracking.mlflow.location import resolve_tracking_uri
from dstransformer.tracking.mlflow.tracker import MlflowTracker
from dstransformer.tracking.tracker import FanOut, NullTracker, Tracker


def build_tracker(config: TrackingConfig, *, rank: int, run_folder: Path, max_updates: int) -> Tracker:
    """Build the tracker: progress, ``metrics.jsonl`` and, if enabled, MLflow on rank 0; a ``NullTracker`` elsewhere.

    Raises:
        ConfigError: The tracking address is not one of a store, on all ranks.
    """
    uri = resolve_tracking_uri(config.uri, run_folder) if config.enabled else None
    if rank != 0:
        return NullTracker()
    console = ConsoleProgress(max_updates)
    trackers: list[Tracker] = [console, MetricsLog(run_folder / METRICS_NAME)]
    if uri is not None:
        trackers.append(
            MlflowTracker(
                run_folder, uri, config.experiment, system_metrics=config.system_metrics, announce=console.print
            )
        )
    return FanOut(trackers)
