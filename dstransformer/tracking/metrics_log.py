"""Writes and reads ``metrics.jsonl``: the metrics of a run, one JSON object per line."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dstransformer.errors import DataError, counted, shown
from dstransformer.evaluation import Evaluation
from dstransformer.io.files import Backlog, append_whole, replacing
from dstransformer.io.json_text import MAX_BYTES, JsonError, parse_json
from dstransformer.io.products import kind_of
from dstransformer.tracking.events import (
    BundleSaved,
    CheckpointSaved,
    CostTotal,
    EvaluationDone,
    Event,
    NonfiniteUpdate,
    Rollback,
    RunEnd,
    RunStart,
    SaveFailed,
    Tracker,
    TrainingProgress,
)

logger = logging.getLogger(__name__)

METRICS_NAME = "metrics.jsonl"

#: A line of the file: ``kind``, ``step``, ``time``, and the metrics.
MetricsLine = dict[str, Any]


class MetricsLog(Tracker):
    """Appends one line per event. It is in the file when the call returns, unless the disk refuses it.

    Lines that the disk refuses wait in memory and are written, in order, before the next line that it accepts.

    A line has ``kind`` (``train``, ``cost``, the name of a held-out split; without metrics ``checkpoint``, ``unsaved``,
    ``bad_update``, ``rollback``), ``step``, ``time`` (Unix seconds) and the metrics under their short names. NaN and
    infinity are written as null.
    """

    name = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._backlog: Backlog[str] = Backlog(path, self._append)
        self._resume_step: int | None = None  # lines of later steps are still to be removed
        self._exists = False  # whether it was written here; if it is missing later, so is its disk

    def emit(self, event: Event) -> None:
        """Append the line of the event.

        The line of a rollback has the step of its checkpoint, so that a resumed run keeps it.
        """
        match event:
            case RunStart(resume_step=step):  # remove incomplete lines and those that a resumed run writes again
                self._resume_step = -1 if step is None else step
                self._backlog.flush()
            case TrainingProgress(step, metrics):
                self._write("train", step, metrics)
            case EvaluationDone(split, step, evaluation):
                self._write_evaluation(split, step, evaluation)
            case CostTotal(step, totals):
                self._write("cost", step, totals)
            case NonfiniteUpdate():
                self._write("bad_update", event.step, event.to_json())
            case Rollback():
                self._write("rollback", event.step, event.to_json())
            case CheckpointSaved(path, sha256, step, score):
                run = self._path.parent  # which may be moved
                relative = path.relative_to(run) if path.is_relative_to(run) else path
                self._write("checkpoint", step, {"path": str(relative), "sha256": sha256, "score": score})
            case SaveFailed(step, what, reason):
                self._write("unsaved", step, {"what": what, "reason": reason})
            case BundleSaved(_, step, evaluations):
                for split, evaluation in evaluations.items():
                    self._write_evaluation(split, step, evaluation)
            case RunEnd():
                self._backlog.flush()
                if self._backlog:
                    logger.warning("%s lacks its last %s", self._path, counted(len(self._backlog), "line"))

    def flush(self) -> None:
        """Write the lines that wait for the disk.

        Raises:
            OSError: They cannot be written.
        """
        if error := self._backlog.flush():
            raise error

    def _write_evaluation(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Write a line with the split as its kind. Signatures of scores are named ``<score>_signature``."""
        signatures = {f"{name}_signature": signature for name, signature in evaluation.signatures.items()}
        self._write(split, step, {**evaluation.metrics, **signatures})

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = json.dumps({"kind": kind, "step": step, "time": round(time.time(), 3), **finite}, ensure_ascii=False)
        self._backlog.add(f"{line}\n")

    def _append(self, lines: Sequence[str]) -> None:
        """Append all lines or none."""
        if self._resume_step is not None:
            if self._path.exists():
                with replacing(self._path) as temporary, temporary.open("w", encoding="utf-8") as file:
                    file.writelines(_lines_until(self._path, self._resume_step))
                self._exists = True
            self._resume_step = None
        if lines:
            append_whole(self._path, "".join(lines), create=not self._exists)
            self._exists = True


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


def read_records(path: Path, *, skip_damaged: bool) -> Iterator[MetricsLine]:
    """Read the lines of the file. An incomplete last line is ignored: it is being written, or a crash truncated it.

    Raises:
        DataError: A line is not a JSON object with a kind and a step, and ``skip_damaged`` is false.
        OSError: The file cannot be read.
    """
    for number, line in enumerate(_iter_lines(path), 1):
        record = _parse(line)
        if record is not None:
            yield record
        elif line.endswith("\n") and line.strip() and not skip_damaged:
            raise DataError(
                f"{path}, line {number} is damaged: {shown(line.strip())} is not a JSON object with kind and step; "
                "delete the line"
            )


def is_finished(run: Path) -> bool:
    """Whether a run has written its final bundle and its scores, and has not continued training since."""
    if kind_of(run / "bundle") != "bundle":
        return False
    try:
        kinds = [record["kind"] for record in read_records(run / METRICS_NAME, skip_damaged=True)]
    except OSError:
        return False
    saved = [kind for kind in kinds if kind != "unsaved"]  # which tells of what could not be written for a while
    return bool(saved) and saved[-1].startswith("final_")


def _parse(line: str) -> MetricsLine | None:
    try:
        record = parse_json(line, nan=True)
    except JsonError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    step = record.get("step")
    return record if type(step) is int and 0 <= step < 2**63 else None


def _lines_until(path: Path, last_step: int) -> Iterator[str]:
    for line in _iter_lines(path):
        record = _parse(line)
        if record is not None and record["step"] <= last_step:
            yield line.rstrip("\n") + "\n"


def _iter_lines(path: Path) -> Iterator[str]:
    """Read lines of bounded length."""
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from iter(lambda: file.readline(MAX_BYTES), "")
