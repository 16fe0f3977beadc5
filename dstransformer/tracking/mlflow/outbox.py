"""A persistent queue of tracking records in the run folder, one file per record.

A record stays on disk until the server has accepted it, so none is lost if the process dies. Records are written to a
temporary file and renamed, which needs no lock: a trainer may add records while another process sends them. While the
disk has no room, a trainer holds its records in memory.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from dstransformer.io.files import append_whole, replacing
from dstransformer.io.json_text import parse_json, read_json

logger = logging.getLogger(__name__)

FOLDER_NAME = "tracking-pending"
SENT_NAME = "tracking-sent.jsonl"
METRICS_PER_BATCH = 1000  # MLflow's limit per request

#: The tag in which the start of a group of runs names its command; a run gets that tag from the store.
SOURCE_TAG = "mlflow.source.name"

_MARKS = ("start", "finish", "crash")

Record = dict[str, Any]  # JSON; "op" names the operation


class Spool:
    """The spool folder of a run; records are ordered by creation time."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER_NAME
        self._sent = run_folder / SENT_NAME
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # of what is in memory: several threads put records, another one sends them
        self._held: dict[Path, Record] = {}  # not written for lack of room, oldest first
        self._unlogged: dict[Path, Record] = {}  # sent, but their line in the log could not be written
        self._compacted = ""  # the last file that compacting again would not change
        #: Records found damaged so far.
        self.damaged = 0

    def put(self, record: Record) -> None:
        """Add a record.

        Raises:
            OSError: The file cannot be written.
        """
        self._write_new(self._new_path(), record)

    def put_or_hold(self, record: Record) -> None:
        """Add a record. If its file cannot be written, hold it in memory; it is pending all the same."""
        with self._lock:
            self._held[self._new_path()] = record
        self.write_held()

    def write_held(self) -> OSError | None:
        """Write what could not be written before, if there is room now.

        Returns:
            What prevents it; None if nothing is held any more.
        """
        with self._lock:
            try:
                while self._held:
                    path = next(iter(self._held))
                    self._write_new(path, self._held[path])
                    del self._held[path]
                self._log_sent()
            except OSError as error:
                return error
        return None

    @property
    def held(self) -> int:
        """Number of pending records that are in memory only."""
        return len(self._held)

    def pending(self) -> list[Path]:
        """The files of the pending records, oldest first, and where those held in memory will be written."""
        written = self._written()
        with self._lock:
            return sorted({*written, *self._held} - self._unlogged.keys())

    def _written(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"))

    def broken(self) -> list[Path]:
        """The files of the records that were found damaged, now or before."""
        return sorted(self._folder.glob("*.broken"))

    def operations(self) -> list[str]:
        """The names of all records of the run, except metrics that were sent, in order. Changes nothing."""
        return [str(record.get("op")) for record in self._records()]

    def is_group(self) -> bool:
        """Whether the records are those of a :class:`RunGroup`. Changes nothing."""
        return any(SOURCE_TAG in record.get("tags", ()) for record in self.records("start"))

    def records(self, operation: str) -> list[Record]:
        """All records of an operation, sent or pending, in order. Changes nothing."""
        return [record for record in self._records() if record.get("op") == operation]

    def _records(self) -> Iterator[Record]:
        """All records that were sent or are pending, except metrics that were sent, in order."""
        lines = self._sent_lines()
        for path in self._written():
            with suppress(FileNotFoundError):
                lines.append(path.read_text(encoding="utf-8", errors="replace"))
        return (record for line in lines if (record := _parse(line)) is not None)

    def lacks_end(self) -> bool:
        """Whether the last start of the run was never followed by a record of its end."""
        marks = [operation for operation in self.operations() if operation in _MARKS]
        return bool(marks) and marks[-1] == "start"

    def batches(self, paths: Sequence[Path]) -> Iterator[tuple[list[Path], Record]]:
        """Read records, merging consecutive metrics records up to ``METRICS_PER_BATCH`` values.

        Yields:
            The files that a record was read from, and the record.
        """
        files: list[Path] = []
        metrics: list[Any] = []
        for path in paths:
            record = self._read(path)
            if record is None:
                continue
            joins = record["op"] == "metrics" and len(metrics) + len(record["metrics"]) <= METRICS_PER_BATCH
            if files and not joins:
                yield files, {"op": "metrics", "metrics": metrics}
                files, metrics = [], []
            if record["op"] == "metrics":
                files.append(path)
                metrics.extend(record["metrics"])
            else:
                yield [path], record
        if files:
            yield files, {"op": "metrics", "metrics": metrics}

    def delete(self, paths: Sequence[Path]) -> None:
        """Delete records."""
        with self._lock:
            for path in paths:
                self._held.pop(path, None)
                path.unlink(missing_ok=True)

    def archive(self, paths: Sequence[Path], record: Record) -> None:
        """Delete sent records, but log those not in ``metrics.jsonl``, to be able to rebuild a lost store.

        A record that cannot be logged for lack of room keeps its file until it can.
        """
        if record["op"] == "metrics":
            self.delete(paths)
            return
        with self._lock, suppress(OSError):
            self._unlogged |= dict.fromkeys(paths, record)
            self._log_sent()

    def _log_sent(self) -> None:
        """Log and delete sent records. Requires the lock."""
        while self._unlogged:
            path = next(iter(self._unlogged))
            append_whole(self._sent, json.dumps(self._unlogged[path]) + "\n")
            del self._unlogged[path]
            self._held.pop(path, None)
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all pending records and the log of sent ones."""
        self.delete(self.pending())
        self._sent.unlink(missing_ok=True)

    def requeue_sent(self, metrics: Sequence[Any]) -> int:
        """Make all sent records pending again, ahead of those that are pending now.

        Args:
            metrics: All logged metrics, as in a record. Those that are still pending are skipped.

        Returns:
            The number of records added.
        """
        records = [record for line in self._sent_lines() if (record := _parse(line)) is not None]
        if not records:
            return 0
        waiting = {
            (name, step)
            for _, record in self.batches(self.pending())
            if record["op"] == "metrics"
            for name, _, _, step in record["metrics"]
        }
        metrics = [metric for metric in metrics if (metric[0], metric[3]) not in waiting]
        parts = [metrics[at : at + METRICS_PER_BATCH] for at in range(0, len(metrics), METRICS_PER_BATCH)]
        records[1:1] = [{"op": "metrics", "metrics": part} for part in parts]  # after the record that creates the run
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, record in enumerate(records):  # these names sort before any timestamp
            self._write(self._folder / f"{number:020d}-0-00000000.json", record)
        self._sent.unlink()
        return len(records)

    def _sent_lines(self) -> list[str]:
        try:
            return self._sent.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def close(self) -> None:
        """Remove the folder if nothing is pending."""
        try:
            self._folder.rmdir()
        except OSError:  # not empty, or never created
            return

    def compact(self) -> None:
        """Merge consecutive metrics records on disk, so that a long outage does not leave thousands of files.

        Reads only what was added since the last call: this thread shares the interpreter with the training loop.
        """
        last = ""
        for files, record in self.batches([path for path in self._written() if path.name > self._compacted]):
            self._compacted, last = last or self._compacted, files[-1].name  # the last batch may still grow
            if len(files) > 1:
                self._write(files[-1], record)
                self.delete(files[:-1])

    def _new_path(self) -> Path:
        return self._folder / f"{time.time_ns():020d}-{os.getpid()}-{next(self._numbers):08d}.json"

    def _write_new(self, path: Path, record: Record) -> None:
        try:
            self._write(path, record)
        except FileNotFoundError:  # first record, or another process removed the folder
            self._folder.mkdir(exist_ok=True)  # a run folder that is gone is not made anew
            self._write(path, record)

    @staticmethod
    def _write(path: Path, record: Record) -> None:
        with replacing(path, durable=False) as aside:  # training waits for it; a record cut short is skipped
            aside.write_text(json.dumps(record), encoding="utf-8")

    def _read(self, path: Path) -> Record | None:
        with self._lock:
            if path in self._held:
                return self._held[path]
        try:
            record = read_json(path, nan=True)
        except FileNotFoundError:  # sent by another process in the meantime
            return None
        except ValueError:  # truncated by a power failure
            record = None
        if _is_record(record):
            return record
        aside = path.with_suffix(".broken")
        logger.warning("%s is damaged: this tracking record is not sent, and kept as %s", path, aside.name)
        with suppress(FileNotFoundError):
            path.rename(aside)
        self.damaged += 1
        return None


def unix_ms() -> int:
    """Unix time in milliseconds, as used by MLflow."""
    return int(time.time() * 1000)


def _parse(line: str) -> Record | None:
    try:
        record = parse_json(line, nan=True)
    except ValueError:  # truncated by a power failure
        return None
    return record if _is_record(record) else None


def _is_record(record: object) -> TypeGuard[Record]:
    """Whether it is an object that names its operation, with tags, and metrics as ``[name, value, time, step]``."""
    if not isinstance(record, dict) or not isinstance(record.get("op"), str):
        return False
    if not isinstance(record.get("tags", {}), dict):
        return False
    metrics = record.get("metrics") if record["op"] == "metrics" else []
    return isinstance(metrics, list) and all(map(_is_metric, metrics))


def _is_metric(metric: object) -> bool:
    return isinstance(metric, list) and [type(part) for part in metric] in (
        [str, float, int, int],
        [str, int, int, int],
    )
