"""Reports on a run: typed events (``events.py``) go to one tracker, which passes them on to the listeners.

The listeners are the terminal (``console.py``), ``metrics.jsonl`` (``metrics_log.py``) and MLflow (``mlflow/``). No
other package imports mlflow, and this one does so lazily.
"""

from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.events import (
    BundleSaved,
    CheckpointSaved,
    CostTotal,
    EvaluationDone,
    EvaluationProgress,
    Event,
    Message,
    NonfiniteUpdate,
    NullTracker,
    Rollback,
    RunEnd,
    RunStart,
    RunStatus,
    SaveFailed,
    Tracker,
    TrainingProgress,
    UpdateDone,
)
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLog
from dstransformer.tracking.mlflow.location import TrackingState, resolve_experiment, resolve_tracking_uri
from dstransformer.tracking.mlflow.parent_run import close_group, open_group
from dstransformer.tracking.mlflow.tracked_run import (
    find_run,
    log_evaluation,
    logged_evaluations,
    register_bundle,
    send_evaluations,
    send_pending,
)
from dstransformer.tracking.mlflow.tracker import MlflowTracker
from dstransformer.tracking.tracker import FanOut, build_tracker

__all__ = [
    "METRICS_NAME",
    "BundleSaved",
    "CheckpointSaved",
    "ConsoleProgress",
    "CostTotal",
    "EvaluationDone",
    "EvaluationProgress",
    "Event",
    "FanOut",
    "Message",
    "MetricsLog",
    "MlflowTracker",
    "NonfiniteUpdate",
    "NullTracker",
    "Rollback",
    "RunEnd",
    "RunStart",
    "RunStatus",
    "SaveFailed",
    "Tracker",
    "TrackingState",
    "TrainingProgress",
    "UpdateDone",
    "build_tracker",
    "close_group",
    "find_run",
    "log_evaluation",
    "logged_evaluations",
    "open_group",
    "register_bundle",
    "resolve_experiment",
    "resolve_tracking_uri",
    "send_evaluations",
    "send_pending",
]
