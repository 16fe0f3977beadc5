"""What is still to be sent to the tracking server, kept in the run folder, a file a record.

A record lives from the moment it is made until the server has it, so nothing is lost when a process dies. Writing a
file aside and renaming it needs no lock: a trainer may add records while another process sends them.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FOLDER_NAME = "tracking-pending"
SENT_NAME = "tracking-sent.jsonl"
METRICS_PER_BATCH = 1000  # the most that MLflow takes in one request

Record = dict[str, Any]  # JSON; "op" says what to do


class Spool:
    """A folder of records, in the order in which they were made."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER_NAME
        self._sent = run_folder / SENT_NAME
        self._numbers = itertools.count()

    def put(self, record: Record) -> None:
        """Keep a record. OSError where the file system refuses."""
        path = self._folder / f"{time.time_ns():020d}-{os.getpid()}-{next(self._numbers):08d}.json"
        try:
            self._write(path, record)
        except FileNotFoundError:  # the first record, or another process closed the spool
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(path, record)

    def pending(self) -> list[Path]:
        """The records' files, oldest first."""
        return sorted(self._folder.glob("*.json"))

    def batches(self, paths: Sequence[Path]) -> Iterator[tuple[list[Path], Record]]:
        """Read records; neighbouring metrics come out as one record of at most ``METRICS_PER_BATCH`` values."""
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

    def drop(self, paths: Sequence[Path]) -> None:
        """Forget records."""
        for path in paths:
            path.unlink(missing_ok=True)

    def archive(self, paths: Sequence[Path], record: Record) -> None:
        """Forget records that were sent, but keep what ``metrics.jsonl`` does not hold, for a store that is lost."""
        if record["op"] != "metrics":
            with self._sent.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.drop(paths)

    def forget(self) -> None:
        """Begin anew: nothing is pending, nothing was sent."""
        self.drop(self.pending())
        self._sent.unlink(missing_ok=True)

    def restore(self, metrics: Sequence[Any]) -> int:
        """Make what was sent pending once more, before what is pending now; returns how many records.

        Args:
            metrics: Those that were logged, as in a record; ones that are pending still are left out.
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
        records[1:1] = [{"op": "metrics", "metrics": part} for part in parts]  # the first makes the run
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, record in enumerate(records):  # a name that sorts before any time of day
            self._write(self._folder / f"{number:020d}-0-00000000.json", record)
        self._sent.unlink()
        return len(records)

    def _sent_lines(self) -> list[str]:
        try:
            return self._sent.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def close(self) -> None:
        """Remove the folder where nothing is pending."""
        try:
            self._folder.rmdir()
        except OSError:  # not empty, or never made
            return

    def compact(self) -> None:
        """Join neighbouring metrics on disk, so that a long outage does not leave a file for every interval."""
        for files, record in self.batches(self.pending()):
            if len(files) > 1:
                self._write(files[-1], record)
                self.drop(files[:-1])

    @staticmethod
    def _write(path: Path, record: Record) -> None:
        aside = path.with_suffix(".tmp")
        aside.write_text(json.dumps(record), encoding="utf-8")
        aside.replace(path)

    @staticmethod
    def _read(path: Path) -> Record | None:
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:  # another process sent it meanwhile
            return None
        except ValueError:  # cut short by a power failure
            logger.warning("%s is damaged and is left out of the tracking record", path)
            path.unlink(missing_ok=True)
            return None
        return record if isinstance(record, dict) else None


def _parse(line: str) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:  # cut short by a power failure
        return None
    return record if isinstance(record, dict) else None
