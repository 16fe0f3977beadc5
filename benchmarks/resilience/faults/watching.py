"""Finds the moments of a run from outside, by its files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.resilience.faults.plan import (
    CHECKPOINT,
    END,
    RENAME,
    START,
    UPDATE,
    VALIDATE_EVERY,
    VALIDATION,
    Case,
    Fault,
)
from dstransformer.errors import DataError
from dstransformer.tracking.metrics_log import is_finished

#: Seconds that a fault may wait within a moment; the moments of a tiny model last about as long.
_WITHIN = {UPDATE: 0.1, CHECKPOINT: 0.05, RENAME: 0.003, VALIDATION: 0.05, END: 1.0}

#: Updates after which a fault whose moment has not come is given up.
_MISSED = 2 * VALIDATE_EVERY

_TAIL = 1 << 14  # bytes; several lines of metrics.jsonl


class Progress:
    """What a run has logged so far.

    Args:
        run: The run folder.
    """

    def __init__(self, run: Path) -> None:
        self._metrics = run / "metrics.jsonl"
        self._checkpoints = run / "checkpoints"

    def last(self, since: float = 0.0) -> dict[str, Any]:
        """The last whole line; empty if there is none since a Unix time, or the disk is gone."""
        lines = self._tail().rpartition(b"\n")[0].splitlines()
        with suppress(ValueError, IndexError):
            record: dict[str, Any] = json.loads(lines[-1])
            return record if record["time"] >= since else {}
        return {}

    @property
    def is_complete(self) -> bool:
        """Whether the run has written all that it shall."""
        try:
            return is_finished(self._metrics.parent)
        except DataError:
            return False

    @property
    def update(self) -> int:
        """The last update logged; 0 before the first."""
        return int(self.last().get("step", 0))

    @property
    def stamp(self) -> tuple[int, int]:
        """Changes with every line."""
        with suppress(OSError):
            status = self._metrics.stat()
            return status.st_mtime_ns, status.st_size
        return 0, 0

    def partial(self, since: float) -> Path | None:
        """The folder of the checkpoint that is being written, begun after a Unix time; None if there is none."""
        with suppress(OSError):
            for entry in os.scandir(self._checkpoints):
                is_one = entry.name.startswith(".partial-step-") and not entry.name.endswith("-deleted")
                if is_one and entry.stat().st_ctime >= since:
                    return Path(entry.path)
        return None

    def _tail(self) -> bytes:
        with suppress(OSError), self._metrics.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read()
        return b""


def wait_for_moment(
    fault: Fault, case: Case, progress: Progress, is_running: Callable[[], bool], started: float, start_seconds: float
) -> bool:
    """Wait until a fault is due.

    Args:
        fault: The fault.
        case: Its run.
        progress: Of the run.
        is_running: Whether all its processes still run.
        started: When they were started, in Unix seconds.
        start_seconds: How long a start takes until the first update.

    Returns:
        Whether the moment has come; if not, the run ended before, or went on for long without it.
    """
    if fault.moment == START:
        due = started + fault.share * start_seconds
        while is_running() and time.time() < due:
            time.sleep(0.01)
        return is_running()
    while not _has_come(fault, case, progress, started):
        if not is_running() or (fault.moment != END and progress.last(started).get("step", 0) > fault.update + _MISSED):
            return False
        time.sleep(0.001)
    time.sleep(fault.share * _WITHIN[fault.moment])
    return is_running()


def _has_come(fault: Fault, case: Case, progress: Progress, started: float) -> bool:
    last = progress.last(started)
    step, kind = int(last.get("step", 0)), last.get("kind")
    if fault.moment == END:
        return step >= case.updates
    if not last or step < fault.update:
        return False
    if fault.moment in (CHECKPOINT, RENAME):
        partial = progress.partial(started)
        if partial is not None and fault.moment == RENAME:
            while partial.exists() and not (partial / "manifest.json").exists():
                pass  # it is there for less than a millisecond
        return partial is not None
    if fault.moment == VALIDATION:
        return kind == "cost" and (step % VALIDATE_EVERY == 0 or step == case.updates)
    return True
