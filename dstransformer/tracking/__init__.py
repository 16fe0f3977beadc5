"""What a run tells the world: MLflow, ``metrics.jsonl`` and progress. The only importer of mlflow, and that lazily."""

from dstransformer.tracking.build import build_tracker
from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.courier import send_pending
from dstransformer.tracking.jsonl import METRICS_NAME, MetricsLog
from dstransformer.tracking.location import TrackingState, resolve_tracking_uri
from dstransformer.tracking.mlflow_tracker import MlflowTracker
from dstransformer.tracking.tracker import (
    Evaluation,
    FanOut,
    NullTracker,
    RunStart,
    RunStatus,
    Sample,
    Tracker,
    bleu_name,
)

__all__ = [
    "METRICS_NAME",
    "ConsoleProgress",
    "Evaluation",
    "FanOut",
    "MetricsLog",
    "MlflowTracker",
    "NullTracker",
    "RunStart",
    "RunStatus",
    "Sample",
    "Tracker",
    "TrackingState",
    "bleu_name",
    "build_tracker",
    "resolve_tracking_uri",
    "send_pending",
]
