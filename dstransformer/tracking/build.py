"""The tracker for a process, from its rank and the configuration."""

from __future__ import annotations

from pathlib import Path

from dstransformer.config import TrackingConfig
from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.jsonl import METRICS_NAME, MetricsLog
from dstransformer.tracking.location import resolve_tracking_uri
from dstransformer.tracking.mlflow_tracker import MlflowTracker
from dstransformer.tracking.tracker import FanOut, NullTracker, Tracker


def build_tracker(config: TrackingConfig, *, rank: int, run_folder: Path, max_updates: int) -> Tracker:
    """Rank 0 gets progress, ``metrics.jsonl`` and, where tracking is enabled, MLflow; other ranks a ``NullTracker``.

    ConfigError where the tracking address names no kind of store, on every rank alike.
    """
    uri = resolve_tracking_uri(config.uri, run_folder) if config.enabled else None
    if rank != 0:
        return NullTracker()
    console = ConsoleProgress(max_updates)
    listeners: list[Tracker] = [console, MetricsLog(run_folder / METRICS_NAME)]
    if uri is not None:
        listeners.append(
            MlflowTracker(
                run_folder, uri, config.experiment, system_metrics=config.system_metrics, announce=console.say
            )
        )
    return FanOut(listeners)
