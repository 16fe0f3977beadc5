"""Reports on a run: MLflow, ``metrics.jsonl`` and terminal progress. The only package that imports mlflow, lazily."""

from dstransformer.tracking.build import build_tracker
from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.courier import send_pending
from dstransformer.tracking.group import PARENT_TAG, RunGroup
from dstransformer.tracking.jsonl import METRICS_NAME, MetricsLog
from dstransformer.tracking.location import TrackingState, resolve_tracking_uri
from dstransformer.tracking.mlflow_tracker import MlflowTracker
from dstransformer.tracking.page import public_address
from dstransformer.tracking.tracker import FanOut, NullTracker, RunStart, RunStatus, Tracker

__all__ = [
    "METRICS_NAME",
    "PARENT_TAG",
    "ConsoleProgress",
    "FanOut",
    "MetricsLog",
    "MlflowTracker",
    "NullTracker",
    "RunGroup",
    "RunStart",
    "RunStatus",
    "Tracker",
    "TrackingState",
    "build_tracker",
    "public_address",
    "resolve_tracking_uri",
    "send_pending",
]
