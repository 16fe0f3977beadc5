"""Reports on a run: typed events (``events.py``) go to one tracker, which passes them on to the listeners.

The listeners are the terminal (``console.py``), ``metrics.jsonl`` (``metrics_log.py``) and MLflow (``mlflow/``). No
other package imports mlflow, and this one does so lazily.
"""

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
from dstransformer.tracking.tracker import FanOut, build_tracker

__all__ = [
    "BundleSaved",
    "CheckpointSaved",
    "CostTotal",
    "EvaluationDone",
    "EvaluationProgress",
    "Event",
    "FanOut",
    "Message",
    "NonfiniteUpdate",
    "NullTracker",
    "Rollback",
    "RunEnd",
    "RunStart",
    "RunStatus",
    "SaveFailed",
    "Tracker",
    "TrainingProgress",
    "UpdateDone",
    "build_tracker",
]
