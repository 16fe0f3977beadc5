"""Run folders with metrics, as training writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dstransformer.io.products import write_marker
from dstransformer.tracking.events import EvaluationDone, TrainingProgress
from dstransformer.tracking.metrics_log import MetricsLog
from support.services.mlflow_server import evaluation_of


def write_run(folder: Path, *, updates: int = 100, loss: float = 5.0, bleu: str = "bleu") -> Path:
    """Write a run's metrics: a record every 10 updates, with falling loss, and a validation every 20."""
    folder.mkdir(parents=True)
    log = MetricsLog(folder / "metrics.jsonl")
    (folder / "metrics.jsonl").touch()
    write_marker(folder, "run")
    for step in range(10, updates + 1, 10):
        now = loss / step
        metrics = {"loss": now, "perplexity": 2**now, "lr": 1e-5 * step, "grad_norm": 1.0, "tokens_per_second": 100.0}
        log.emit(TrainingProgress(step, metrics))
        if step % 20 == 0:
            scores: dict[str, Any] = {bleu: float(step)}
            log.emit(EvaluationDone("valid", step, evaluation_of(loss=now + 1, **scores)))
    return folder
