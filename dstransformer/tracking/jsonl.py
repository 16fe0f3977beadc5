"""Writes and reads ``metrics.jsonl``: the metrics of a run, one JSON object per line."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dstransformer.errors import DataError, counted, shown
from dstransformer.evaluation import Evaluation
from dstransformer.io.files import replacing
from dstransformer.io.json_text import MAX_BYTES, JsonError, parse_json
from dstransformer.tracking.payload import point_stride
from dstransformer.tracking.tracker import BadUpdate, Rollback, RunStart, RunStatus, Tracker

logger = logging.getLogger(__name__)

METRICS_NAME = "metrics.jsonl"

#: Kinds of lines that hold no metrics.
EVENTS = ("checkpoint", "unsaved", "bad_update", "rollback")

#: A line of the file: ``kind``, ``step``, ``time``, and the metrics.
Record = dict[str, Any]


class MetricsLog(Tracker):
    """Appends one line per event. The line is on file when the call returns, unless the disk refuses it.

    Lines that the disk refuses wait in memory, in their order, and are written with the next one that it takes.

    A line has ``kind`` (one of ``EVENTS``, ``train``, ``cost``, or the name of a held-out split), ``step``, ``time``
    (Unix seconds) and the metrics under their short names. NaN and infinity are written as null.
    """

    name = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._keeps_until: int | None = None  # the last step whose lines stay, while the others have yet to be removed
        self._is_there = False  # whether the file exists, so that one that is gone is not begun anew in its place
        self._refuses = False

    def start(self, run: RunStart) -> None:
        """Remove lines that a resumed run will write again, and a line truncated by a crash."""
        self._keeps_until = -1 if run.resume_step is None else run.resume_step
        self._flush()

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

    def log_bad_update(self, update: BadUpdate) -> None:
        """Write a line of kind ``bad_update``."""
        self._write("bad_update", update.step, update.to_json())

    def log_rollback(self, rollback: Rollback) -> None:
        """Write a line of kind ``rollback``, whose step is the checkpoint's, so that a resumed run keeps it."""
        self._write("rollback", rollback.step, rollback.to_json())

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """Write a line of kind ``checkpoint``."""
        self._write("checkpoint", step, {"path": self._within_run(path), "sha256": sha256, "score": score})

    def log_unsaved(self, step: int, what: str, reason: str) -> None:
        """Write a line of kind ``unsaved``."""
        self._write("unsaved", step, {"what": what, "reason": reason})

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Write a line for each split that the bundle was evaluated on."""
        del bundle
        for split, evaluation in evaluations.items():
            self.log_eval(split, step, evaluation)

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = json.dumps({"kind": kind, "step": step, "time": round(time.time(), 3), **finite}, ensure_ascii=False)
        self._waiting.append(f"{line}\n".encode())
        self._flush()

    def settle(self) -> None:
        """Write the lines that wait for the disk.

        Raises:
            OSError: It refuses them.
        """
        error = self._flush()
        if error is not None:
            raise error

    def finish(self, status: RunStatus) -> None:
        """Try for the last time to write lines that wait for the disk."""
        del status
        self._flush()
        if self._waiting:
            logger.warning("%s lacks its last %s", self._path, counted(len(self._waiting), "line"))

    def _flush(self) -> OSError | None:
        """Write what waits; if the disk refuses it, say so once, leave it for the next time, and return the error."""
        try:
            if self._keeps_until is not None:
                self._remove_later_lines(self._keeps_until)
            if self._waiting:
                self._append(b"".join(self._waiting))
                self._waiting.clear()
        except OSError as error:
            if not self._refuses:
                logger.warning(
                    "cannot write %s: %s; training continues, and its lines wait for the disk",
                    self._path, error.strerror or error,
                )  # fmt: skip
            self._refuses = True
            return error
        if self._refuses:
            logger.warning("%s is written again, with the lines that waited", self._path)
        self._refuses = False
        return None

    def _remove_later_lines(self, last_step: int) -> None:
        if self._path.exists():
            with replacing(self._path) as aside, aside.open("w", encoding="utf-8") as file:
                file.writelines(_lines_until(self._path, last_step))
            self._is_there = True
        self._keeps_until = None

    def _append(self, lines: bytes) -> None:
        """Append all of it or nothing."""
        flags = os.O_WRONLY | os.O_APPEND | (0 if self._is_there else os.O_CREAT)
        descriptor = os.open(self._path, flags, 0o666)
        try:
            self._is_there = True
            size, rest = os.fstat(descriptor).st_size, memoryview(lines)
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def _within_run(self, path: Path) -> str:
        """A path relative to the run folder, which may be moved."""
        return str(path.relative_to(self._path.parent) if path.is_relative_to(self._path.parent) else path)


def first_time(path: Path) -> float | None:
    """When the first metrics of a run were logged, in Unix seconds; None if there are none."""
    return next(_times(path), None)


def last_time(path: Path) -> float | None:
    """When the last metrics of a run were logged, in Unix seconds; None if there are none."""
    return max(_times(path), default=None)


def _times(path: Path) -> Iterator[float]:
    if path.exists():
        records = read_records(path, skip_damaged=True)
        yield from (record["time"] for record in records if isinstance(record.get("time"), int | float))


def logged_metrics(path: Path) -> list[tuple[str, float, int, int]]:
    """Read the metrics of a run; none if there is no file.

    The scores of the final bundle are left out, because MLflow has them as metrics of its model. A curve of too many
    points is thinned.

    Returns:
        Name (``train/loss``), value, time (Unix milliseconds) and step of every finite value.
    """
    if not path.exists():
        return []
    found = []
    for record in read_records(path, skip_damaged=True):
        kind, step, when = record["kind"], record["step"], record.get("time")
        if kind in EVENTS or kind.startswith("final_") or not isinstance(when, int | float):
            continue
        found += [
            (f"{kind}/{name}", float(value), int(when * 1000), step)
            for name, value in record.items()
            if name not in ("step", "time") and isinstance(value, int | float)
        ]
    counts = Counter(name for name, *_ in found)
    numbers: Counter[str] = Counter()
    kept = []
    for metric in found:
        numbers[metric[0]] += 1
        if numbers[metric[0]] % point_stride(counts[metric[0]]) == 0:
            kept.append(metric)
    return kept


def read_records(path: Path, *, skip_damaged: bool) -> Iterator[Record]:
    """Read the lines of the file. A last line without its end is ignored: it is being written, or a crash cut it off.

    Args:
        path: The file.
        skip_damaged: Ignore damaged lines.

    Raises:
        DataError: A line is not a JSON object with a kind and a step.
        OSError: The file cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES), ""), 1):
            record = _parse(line)
            if record is not None:
                yield record
            elif line.endswith("\n") and line.strip() and not skip_damaged:
                raise DataError(
                    f"{path}, line {number} is damaged: {shown(line.strip())} is not a JSON object with kind and step; "
                    "delete the line"
                )


def _parse(line: str) -> Record | None:
    try:
        record = parse_json(line, nan=True)
    except JsonError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    step = record.get("step")
    return record if type(step) is int and 0 <= step < 2**63 else None


def _lines_until(path: Path, last_step: int) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in iter(lambda: file.readline(MAX_BYTES), ""):
            try:
                step = parse_json(line, nan=True)["step"]
            except (JsonError, TypeError, KeyError):
                continue
            if isinstance(step, int) and step <= last_step:
                yield line.rstrip("\n") + "\n"
