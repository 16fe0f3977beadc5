"""A persistent queue of tracking records in the run folder, one file per record.

A record stays on disk until the server has accepted it, so none is lost if the process dies. Records are written to a
temporary file and renamed, which needs no lock: a trainer may add records while another process sends them.
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

from dstransformer.files import replacing
from dstransformer.json_text import parse_json, read_json

logger = logging.getLogger(__name__)

FOLDER_NAME = "tracking-pending"
SENT_NAME = "tracking-sent.jsonl"
METRICS_PER_BATCH = 1000  # MLflow's limit per request

#: The tag in which the start of a group of runs names its command; a run gets that tag from the store.
SOURCE_TAG = "mlflow.source.name"

_MARKS = ("start", "finish", "crash")

Record = dict[str, Any]  # JSON; "op" names the operation


class Spool:
    """The spool folder of a run; records are ordered by creation time.

    Args:
        run_folder: The run folder; exists.
        waits: Whether records that the disk refuses wait in memory, in their order, for the next that it takes.
    """

    def __init__(self, run_folder: Path, *, waits: bool = False) -> None:
        self._waits = waits
        self._adding = threading.Lock()
        self._waiting: list[tuple[str, Record]] = []
        self._folder = run_folder / FOLDER_NAME
        self._sent = run_folder / SENT_NAME
        self._numbers = itertools.count()
        #: Records found damaged so far.
        self.damaged = 0

    def put(self, record: Record) -> None:
        """Add a record.

        Raises:
            OSError: The file cannot be written, and records do not wait.
        """
        name = f"{time.time_ns():020d}-{os.getpid()}-{next(self._numbers):08d}.json"
        if not self._waits:
            self._add(name, record)
            return
        with self._adding:
            refused = bool(self._waiting)
            self._waiting.append((name, record))
            try:
                while self._waiting:
                    self._add(*self._waiting[0])
                    del self._waiting[0]
            except OSError as error:
                if not refused:
                    logger.warning(
                        "cannot write %s: %s; training continues, and tracking records wait for the disk",
                        self._folder, error.strerror or error,
                    )  # fmt: skip

    @property
    def waiting(self) -> int:
        """Number of records that the disk has refused so far."""
        return len(self._waiting)

    def _add(self, name: str, record: Record) -> None:
        try:
            self._write(self._folder / name, record)
        except FileNotFoundError:  # first record, or another process removed the folder
            self._folder.mkdir(exist_ok=True)
            self._write(self._folder / name, record)

    def pending(self) -> list[Path]:
        """The files of the pending records, oldest first."""
        return sorted(self._folder.glob("*.json"))

    def broken(self) -> list[Path]:
        """The files of the records that were found damaged, now or before."""
        return sorted(self._folder.glob("*.broken"))

    def operations(self) -> list[str]:
        """The names of all records of the run, except metrics that were sent, in order. Changes nothing."""
        return [str(record.get("op")) for record in self._records()]

    def is_group(self) -> bool:
        """Whether the records are those of a :class:`RunGroup`. Changes nothing."""
        return any(SOURCE_TAG in record.get("tags", ()) for record in self._records() if record.get("op") == "start")

    def _records(self) -> Iterator[Record]:
        """All records that were sent or are pending, except metrics that were sent, in order."""
        lines = self._sent_lines()
        for path in self.pending():
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
        for path in paths:
            path.unlink(missing_ok=True)

    def archive(self, paths: Sequence[Path], record: Record) -> None:
        """Delete sent records, but log those not in ``metrics.jsonl``, to be able to rebuild a lost store."""
        if record["op"] != "metrics":
            with self._sent.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.delete(paths)

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
        """Merge consecutive metrics records on disk, so that a long outage does not leave thousands of files."""
        for files, record in self.batches(self.pending()):
            if len(files) > 1:
                self._write(files[-1], record)
                self.delete(files[:-1])

    @staticmethod
    def _write(path: Path, record: Record) -> None:
        with replacing(path, durable=False) as aside:  # training waits for it; a record cut short is skipped
            aside.write_text(json.dumps(record), encoding="utf-8")

    def _read(self, path: Path) -> Record | None:
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
