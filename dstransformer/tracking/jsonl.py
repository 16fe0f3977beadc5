"""``metrics.jsonl``: the run's figures, an object a line, for programs and for eyes."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dstransformer.tracking.tracker import Evaluation, RunStart, Sample, Tracker

METRICS_NAME = "metrics.jsonl"


class MetricsLog(Tracker):
    """Appends to a file; every line is complete on disk when the call returns.

    A line has ``kind`` (``train``, ``checkpoint``, or the name of a held-out split), ``step``, ``time`` (Unix seconds)
    and the figures under their short names; a figure that is not finite is null.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, run: RunStart) -> None:
        """Drop what a resumed run will write again: lines beyond its step, and a line cut short by a crash."""
        if self._path.exists():
            aside = self._path.with_name(self._path.name + ".tmp")
            with aside.open("w", encoding="utf-8") as file:
                file.writelines(_lines_until(self._path, -1 if run.resume_step is None else run.resume_step))
            aside.replace(self._path)

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line of kind ``train``."""
        self._write("train", step, metrics)

    def log_eval(
        self,
        split: str,
        step: int,
        metrics: Mapping[str, float],
        *,
        signatures: Mapping[str, str] | None = None,
        samples: Sequence[Sample] = (),
    ) -> None:
        """Write a line of the split's kind; a signature stands beside its score as ``<score>_signature``."""
        del samples
        named = {f"{name}_signature": signature for name, signature in (signatures or {}).items()}
        self._write(split, step, {**metrics, **named})

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """Write a line of kind ``checkpoint``."""
        self._write("checkpoint", step, {"path": str(path), "sha256": sha256, "score": score})

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Write a line for each split that the bundle was evaluated on."""
        del bundle
        for split, evaluation in evaluations.items():
            self.log_eval(split, step, evaluation.metrics, signatures=evaluation.signatures)

    def _write(self, kind: str, step: int, values: Mapping[str, float | str | None]) -> None:
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = json.dumps({"kind": kind, "step": step, "time": round(time.time(), 3), **finite}, ensure_ascii=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def logged_metrics(path: Path) -> list[tuple[str, float, int, int]]:
    """Name (``train/loss``), value, time in milliseconds and step of every finite figure; none where there is no file.

    The scores of a bundle are left out: they belong to it.
    """
    if not path.exists():
        return []
    found = []
    for record in _read_records(path):
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


def _read_records(path: Path) -> Iterator[dict[str, Any]]:
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
