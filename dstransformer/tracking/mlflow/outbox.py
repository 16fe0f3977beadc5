"""The outbox of a run: tracking records in an append-only file, and a cursor that says which of them were sent.

A record stays in the file when it was sent, so that a store which has lost the run can be filled again: the cursor goes
back to 0. Sending a record twice changes nothing in the store, so a cursor that is lost or damaged counts as 0 too.
Several processes may append, a trainer and ``dst evaluate``; one process at a time sends. While the disk is full, a
trainer holds its records in memory.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dstransformer.errors import DataError
from dstransformer.io.files import Backlog, append_whole, replacing
from dstransformer.io.json_text import JsonError, parse_json, read_json

logger = logging.getLogger(__name__)

OUTBOX_NAME = "tracking-outbox.jsonl"
CURSOR_NAME = "tracking-cursor.json"
FORMAT_VERSION = 1

Record = dict[str, Any]  #: JSON; ``op`` names the operation that ``MlflowStore`` applies.

METRICS_PER_BATCH = 1000  # MLflow's limit per request

_HEADER = {"op": "outbox", "format_version": FORMAT_VERSION}  # the first line


def unix_ms() -> int:
    """Unix time in milliseconds, as used by MLflow."""
    return int(time.time() * 1000)


@dataclass
class _Cursor:
    """Every record before the byte ``offset`` of the file was sent, or refused, and begins at one of ``refused``."""

    offset: int = 0
    refused: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class RecordBatch:
    """A record to send, or the metrics of several records as one.

    Attributes:
        record: The record.
        offsets: Where its lines begin; empty if it is held in memory only.
        end: Where its last line ends.
    """

    record: Record
    offsets: tuple[int, ...] = ()
    end: int = 0


@dataclass(frozen=True)
class _Line:
    """A complete line of the file: where it begins and ends, and its record, which is None if it is damaged."""

    offset: int
    end: int
    record: Record | None


class Outbox:
    """The outbox in a run folder."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._path = run_folder / OUTBOX_NAME
        self._exists = False  # whether it was written here; if it is missing later, so is its disk
        self._is_checked = False
        self._loaded: _Cursor | None = None
        self._backlog: Backlog[Record] = Backlog(self._path, self._append)
        self._tried: dict[int, tuple[Record, bool]] = {}  # records sent from memory, by id, and whether accepted

    def put(self, record: Record) -> None:
        """Append a record.

        Raises:
            OSError: It cannot be written.
        """
        self._append([record])

    def put_or_hold(self, record: Record) -> None:
        """Append a record; hold it in memory while the disk refuses it. It can be sent from there."""
        self._backlog.add(record)

    def flush(self) -> None:
        """Append the records that are held in memory, if the disk accepts them now."""
        self._backlog.flush()

    @property
    def held(self) -> int:
        """Number of records in memory only that the store has not accepted."""
        accepted = sum(is_accepted for _, is_accepted in self._tried.values())
        return max(0, len(self._backlog) - accepted)

    def has_pending(self) -> bool:
        """Whether there are records to send. Raises the errors of :meth:`pending`."""
        cursor = self._cursor()
        return bool(cursor.refused or self._held()) or next(self._lines(cursor.offset), None) is not None

    def pending(self) -> int:
        """Number of records that were not sent.

        Raises:
            DataError: The outbox has a newer format.
            OSError: It cannot be read.
        """
        cursor = self._cursor()
        return len(cursor.refused) + sum(1 for _ in self._lines(cursor.offset)) + self.held

    def batches(self, *, retry_refused: bool = True) -> Iterator[RecordBatch]:
        """Read the records to send, oldest first, merging consecutive metrics up to ``METRICS_PER_BATCH`` values.

        Call :meth:`mark` on a batch before taking the next one. Records that the store refused before are read again if
        ``retry_refused`` is true.

        Raises:
            DataError: The outbox has a newer format.
            OSError: It cannot be read.
        """
        cursor = self._cursor()
        for offset in sorted(cursor.refused) if retry_refused else ():
            line = next(self._lines(offset), None)
            if line is not None and line.record is not None:
                yield RecordBatch(line.record, (offset,), cursor.offset)
        lines: list[_Line] = []
        for line in self._lines(cursor.offset):
            if lines and not _fits(lines, line):
                yield _merge(lines)
                lines = []
            if line.record is None:  # the line stays in the file
                logger.warning("%s is damaged at byte %d: this tracking record is not sent", self._path, line.offset)
                self._move_cursor(line.end)
            elif line.record["op"] == "metrics":
                lines.append(line)
            else:
                yield _merge([line])
        if lines:
            yield _merge(lines)
        for record in self._held():
            yield RecordBatch(record)

    def mark(self, batch: RecordBatch, *, accepted: bool) -> None:
        """Note whether the store accepted a batch. A held record that it refused is sent again from the file."""
        if not batch.offsets:
            self._tried[id(batch.record)] = (batch.record, accepted)
            return
        cursor = self._cursor()
        if accepted:
            cursor.refused.difference_update(batch.offsets)
        else:
            cursor.refused.update(batch.offsets)
        self._move_cursor(batch.end)

    @property
    def refused(self) -> int:
        """Number of records that the store refused. They are still pending."""
        return len(self._cursor().refused)

    def rewind(self) -> int:
        """Make all records pending again, for a store that has lost the run.

        Returns:
            The number of records that were sent before.
        """
        cursor = self._cursor()
        sent = sum(line.end <= cursor.offset for line in self._lines(0)) - len(cursor.refused)
        if sent:
            self._loaded = _Cursor()
            self._save_cursor()
        return sent

    def clear(self) -> None:
        """Delete all records.

        Raises:
            OSError: A file cannot be deleted.
        """
        for path in (self._path, self._folder / CURSOR_NAME):
            path.unlink(missing_ok=True)
        self._loaded, self._exists = None, False

    def count_damaged(self) -> int:
        """Number of damaged lines in the whole outbox."""
        return sum(line.record is None for line in self._lines(0))

    def records(self, operation: str | None = None) -> Iterator[Record]:
        """Read all records, sent or pending, in order; or only those of one operation. Changes nothing."""
        for line in self._lines(0):
            if line.record is not None and operation in (None, line.record["op"]):
                yield line.record

    def _held(self) -> list[Record]:
        return [record for record in self._backlog.waiting() if id(record) not in self._tried]

    def _lines(self, offset: int) -> Iterator[_Line]:
        """Read the complete lines from an offset on, without the header."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            header = file.readline()
            record = _parse_record(header)
            if record is not None and record["op"] == _HEADER["op"]:
                version = record.get("format_version")
                if version != FORMAT_VERSION:
                    raise DataError(
                        f"{self._path} has format version {version}, this program reads version {FORMAT_VERSION}: "
                        "update dstransformer"
                    )
                offset = max(offset, len(header))
            file.seek(offset)
            while (line := file.readline()).endswith(b"\n"):  # the last line may be incomplete
                yield _Line(offset, offset + len(line), _parse_record(line))
                offset += len(line)

    def _append(self, records: Sequence[Record]) -> None:
        """Append all records or none."""
        if not records:
            return
        self._check_format()
        with self._locked() as size:
            lines = [json.dumps(record) for record in ([] if size else [_HEADER]) + list(records)]
            append_whole(self._path, "".join(f"{line}\n" for line in lines), create=False)
        self._tried.clear()  # they are pending again: sending them twice changes nothing

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the file, created if missing. Truncate a line that a crash left incomplete. Yields the size."""
        descriptor = os.open(self._path, os.O_RDWR | (0 if self._exists else os.O_CREAT), 0o666)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = _end_of_lines(descriptor)
            if size < os.fstat(descriptor).st_size:
                os.ftruncate(descriptor, size)
            yield size
            self._exists = True
        finally:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may have the descriptor too
            os.close(descriptor)

    def _cursor(self) -> _Cursor:
        if self._loaded is None:
            self._check_format()
            self._loaded = self._read_cursor()
        return self._loaded

    def _read_cursor(self) -> _Cursor:
        """Read the cursor. One that is damaged or does not fit the file counts as 0."""
        try:
            stored = read_json(self._folder / CURSOR_NAME)
            cursor = _Cursor(stored["offset"], set(stored["refused"]))
            with self._path.open("rb") as file:
                for offset in (cursor.offset, *cursor.refused):
                    file.seek(offset - 1)
                    if file.read(1) != b"\n":  # the disk lost the end of the outbox
                        return _Cursor()
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return _Cursor()
        except OSError as error:
            if error.errno == errno.EINVAL:  # a negative offset
                return _Cursor()
            raise
        return cursor

    def _move_cursor(self, offset: int) -> None:
        cursor = self._cursor()
        cursor.offset = max(cursor.offset, offset)
        self._save_cursor()

    def _save_cursor(self) -> None:
        """Write the cursor. If that fails, records are sent again after a crash, which is harmless."""
        cursor = self._cursor()
        content = {"format_version": FORMAT_VERSION, "offset": cursor.offset, "refused": sorted(cursor.refused)}
        with suppress(OSError), replacing(self._folder / CURSOR_NAME, durable=False) as temporary:
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")

    def _check_format(self) -> None:
        """Check the format of the file, once.

        Raises:
            DataError: The outbox has a newer format.
            OSError: It cannot be read.
        """
        if not self._is_checked:
            next(self._lines(0), None)
            self._is_checked = True


def _fits(lines: Sequence[_Line], line: _Line) -> bool:
    """Whether a line can join a batch of metrics."""
    if line.record is None or line.record["op"] != "metrics":
        return False
    return sum(len(each.record["metrics"]) for each in (*lines, line) if each.record) <= METRICS_PER_BATCH


def _merge(lines: Sequence[_Line]) -> RecordBatch:
    offsets, end = tuple(line.offset for line in lines), lines[-1].end
    records = [line.record for line in lines if line.record is not None]
    if len(records) == 1:
        return RecordBatch(records[0], offsets, end)
    metrics = [metric for record in records for metric in record["metrics"]]
    return RecordBatch({"op": "metrics", "metrics": metrics}, offsets, end)


def _end_of_lines(descriptor: int) -> int:
    """The end of the last complete line of a file."""
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - 65536)
        if (last := os.pread(descriptor, end - begin, begin).rfind(b"\n")) >= 0:
            return begin + last + 1
        end = begin
    return 0


def _parse_record(line: bytes) -> Record | None:
    """Read a line of JSON: an object that names its operation, with tags, and metrics as ``[name, value, time, step]``.

    Returns None if it is damaged.
    """
    try:
        record = parse_json(line.decode(errors="replace"), nan=True)
    except JsonError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("op"), str):
        return None
    metrics = record.get("metrics") if record["op"] == "metrics" else []
    if not isinstance(metrics, list) or not isinstance(record.get("tags", {}), dict):
        return None
    kinds = [list(map(type, metric)) if isinstance(metric, list) else [] for metric in metrics]
    return record if all(kind in ([str, float, int, int], [str, int, int, int]) for kind in kinds) else None
