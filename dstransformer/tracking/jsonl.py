"""Writes and reads ``metrics.jsonl``: the metrics of a run, one JSON object per line."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dstransformer.evaluation import Evaluation
from dstransformer.files import replacing
from dstransformer.tracking.tracker import RunStart, Tracker

METRICS_NAME = "metrics.jsonl"


class MetricsLog(Tracker):
    """Appends one line per event. The line is on file when the call returns.

    A line has ``kind`` (``train``, ``cost``, ``checkpoint``, or the name of a held-out split), ``step``, ``time`` (Unix
    seconds) and the metrics under their short names. NaN and infinity are written as null.
    """

    name = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, run: RunStart) -> None:
        """Remove lines that a resumed run will write again, and a line truncated by a crash."""
        if self._path.exists():
            last_step = -1 if run.resume_step is None else run.resume_step
            with replacing(self._path) as aside, aside.open("w", encoding="utf-8") as file:
                file.writelines(_lines_until(self._path, last_step))

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line of kind ``train``."""
        self._write("train", step, metrics)

    def log_eval(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Write a line with the split as its kind. Signatures of scores are named ``<score>_signature``."""
        signatures = {f"{name}_signature": signature for name, signature in evaluation.signatures.items()}
        self._write(split, step, {**evaluation.metrics, **signatures})

    def log_cost(self, step: int, totals: Mapping[str, float]) -> None:
        """Write a line of kind ``cost``."""
        self._write("cost", step, totals)

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """Write a line of kind ``checkpoint``."""
        self._write("checkpoint", step, {"path": str(path), "sha256": sha256, "score": score})

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Write a line for each split that the bundle was evaluated on."""
        del bundle
        for split, evaluation in evaluations.items():
            self.log_eval(split, step, evaluation)

    def _write(self, kind: str, step: int, values: Mapping[str, float | str | None]) -> None:
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = json.dumps({"kind": kind, "step": step, "time": round(time.time(), 3), **finite}, ensure_ascii=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def logged_metrics(path: Path) -> list[tuple[str, float, int, int]]:
    """Read the metrics of a run; none if there is no file.

    The scores of the final bundle are left out, because MLflow has them as metrics of its model.

    Returns:
        Name (``train/loss``), value, time (Unix milliseconds) and step of every finite value.
    """
    if not path.exists():
        return []
    found = []
    for record in read_records(path):
        kind, step, when = record.get("kind"), record.get("step"), record.get("time")
        if kind == "checkpoint" or str(kind).startswith("final_") or not isinstance(step, int):
            continue
        if not isinstance(when, int | float):
            continue
        found += [
            (f"{kind}/{name}", float(value), int(when * 1000), step)
            for name, value in record.items()
            if name not in ("step", "time") and isinstance(value, int | float)
        ]
    return found


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``, as objects. Damaged lines are left out.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    yield record


def _lines_until(path: Path, last_step: int) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                step = json.loads(line)["step"]
            except (ValueError, TypeError, KeyError):
                continue
            if isinstance(step, int) and step <= last_step:
                yield line.rstrip("\n") + "\n"
