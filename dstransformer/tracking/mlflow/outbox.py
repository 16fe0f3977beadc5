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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dstransformer.errors import DataError
from dstransformer.io.files import append_whole, replacing
from dstransformer.io.json_text import read_json
from dstransformer.io.retry import Backlog
from dstransformer.tracking.metrics_log import METRICS_NAME
from dstransformer.tracking.mlflow.pending_folder import PENDING_NAME, SENT_NAME, read_pending, read_sent, with_metrics
from dstransformer.tracking.mlflow.records import METRICS_PER_BATCH, Record, parse_record

logger = logging.getLogger(__name__)

OUTBOX_NAME = "tracking-outbox.jsonl"
CURSOR_NAME = "tracking-cursor.json"
FORMAT_VERSION = 1

#: The tag in which the start of a group of runs names its command; a run gets that tag from the store.
SOURCE_TAG = "mlflow.source.name"

_HEADER = {"op": "outbox", "format_version": FORMAT_VERSION}  # the first line
_MARKS = ("start", "finish", "crash")


@dataclass
class _Cursor:
    """How far the outbox was sent.

    Attributes:
        offset: Every record before this byte of the file was sent or refused.
        refused: Where the refused records begin.
    """

    offset: int = 0
    refused: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Batch:
    """A record to send, perhaps the metrics of several lines.

    Attributes:
        record: The record.
        offsets: Where its lines begin; empty if it is held in memory only.
        end: Where its last line ends.
    """

    record: Record
    offsets: tuple[int, ...] = ()
    end: int = 0

    @property
    def count(self) -> int:
        """The number of records in it."""
        return max(1, len(self.offsets))


@dataclass(frozen=True)
class _Line:
    """A complete line of the file: where it begins and ends, and its record; None if it is damaged."""

    offset: int
    end: int
    record: Record | None


class Outbox:
    """The outbox in a run folder."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._path = run_folder / OUTBOX_NAME
        self._exists = False  # whether it was written here; a file that is gone then is on a disk that is gone
        self._is_prepared = False
        self._loaded: _Cursor | None = None
        self._backlog: Backlog[Record] = Backlog(self._append, self._warn_of_refusal, self._warn_of_recovery)
        self._tried: dict[int, tuple[Record, bool]] = {}  # records sent from memory, by id; whether they were accepted
        #: Damaged lines that were skipped so far.
        self.damaged = 0

    def put(self, record: Record) -> None:
        """Append a record.

        Raises:
            OSError: The disk refuses it.
        """
        self._append([record])

    def put_or_hold(self, record: Record) -> None:
        """Append a record. While the disk refuses it, hold it in memory; it can be sent all the same."""
        self._backlog.add(record)

    def flush(self) -> None:
        """Append the records that are held in memory, if the disk accepts them now."""
        self._backlog.flush()

    @property
    def held(self) -> int:
        """Number of records that are in memory only and that the store does not have."""
        accepted = sum(is_accepted for _, is_accepted in self._tried.values())
        return max(0, len(self._backlog) - accepted)

    def has_pending(self) -> bool:
        """Whether there are records to send. Raises what :meth:`pending` raises."""
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

    def batches(self, *, retry_refused: bool = True) -> Iterator[Batch]:
        """Read the records to send, oldest first, merging consecutive metrics up to ``METRICS_PER_BATCH`` values.

        Call :meth:`mark_sent` or :meth:`mark_refused` on a batch before taking the next one.

        Args:
            retry_refused: Also read the records that the store refused before.

        Raises:
            DataError: The outbox has a newer format.
            OSError: It cannot be read.
        """
        cursor = self._cursor()
        for offset in sorted(cursor.refused) if retry_refused else ():
            line = next(self._lines(offset), None)
            if line is not None and line.record is not None:
                yield Batch(line.record, (offset,), cursor.offset)
        lines: list[_Line] = []
        for line in self._lines(cursor.offset):
            if lines and not _joins(lines, line):
                yield _merge(lines)
                lines = []
            if line.record is None:
                self._skip(line)
            elif line.record["op"] == "metrics":
                lines.append(line)
            else:
                yield _merge([line])
        if lines:
            yield _merge(lines)
        for record in self._held():
            yield Batch(record)

    def mark_sent(self, batch: Batch) -> None:
        """Note that a batch was sent."""
        if not batch.offsets:
            self._tried[id(batch.record)] = (batch.record, True)
            return
        cursor = self._cursor()
        cursor.refused.difference_update(batch.offsets)
        self._move_cursor(batch.end)

    def mark_refused(self, batch: Batch) -> None:
        """Note that the store refused a batch. One in memory is tried again when it is in the file."""
        if not batch.offsets:
            self._tried[id(batch.record)] = (batch.record, False)
            return
        self._cursor().refused.update(batch.offsets)
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
        for path in (self._path, self._folder / CURSOR_NAME, self._folder / SENT_NAME):
            path.unlink(missing_ok=True)
        self._delete_old(read_pending(self._folder))
        self._loaded, self._exists = None, False

    def count_damaged(self) -> int:
        """Number of damaged lines in the whole outbox."""
        return sum(line.record is None for line in self._lines(0))

    def operations(self) -> list[str]:
        """The operations of all records, sent or pending, in order. Changes nothing."""
        return [record["op"] for record in self._records()]

    def records(self, operation: str) -> list[Record]:
        """All records of an operation, sent or pending, in order. Changes nothing."""
        return [record for record in self._records() if record["op"] == operation]

    def is_group(self) -> bool:
        """Whether the records are those of a :class:`RunGroup`. Changes nothing."""
        return any(SOURCE_TAG in record.get("tags", ()) for record in self.records("start"))

    def lacks_end(self) -> bool:
        """Whether the last start of the run was never followed by a record of its end. Changes nothing."""
        marks = [operation for operation in self.operations() if operation in _MARKS]
        return bool(marks) and marks[-1] == "start"

    def last_time(self) -> int:
        """When the run last reported something itself, in Unix milliseconds; 0 if it never did. Changes nothing."""
        times = [0]
        for record in self._records():
            if record["op"] == "metrics":
                times += [when for _, _, when, _ in record["metrics"]]
            elif record["op"] != "evaluation" and isinstance(record.get("time"), int):
                times.append(record["time"])
        return max(times)

    def _records(self) -> Iterator[Record]:
        yield from read_sent(self._folder)
        yield from (record for record in read_pending(self._folder).values() if not isinstance(record, str))
        yield from (line.record for line in self._lines(0) if line.record is not None)

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
            if _is_header(self._path, parse_record(header)):
                offset = max(offset, len(header))
            file.seek(offset)
            while (line := file.readline()).endswith(b"\n"):  # the last line may be incomplete
                yield _Line(offset, offset + len(line), parse_record(line))
                offset += len(line)

    def _skip(self, line: _Line) -> None:
        """Skip a damaged line, which stays in the file."""
        logger.warning("%s is damaged at byte %d: this tracking record is not sent", self._path, line.offset)
        self.damaged += 1
        self._move_cursor(line.end)

    def _append(self, records: Sequence[Record]) -> None:
        """Append records, all or none."""
        if not records:
            return
        self._prepare()
        with self._locked() as size:
            self._write([] if size else [_HEADER], records)
        self._tried.clear()  # they are pending again: sending them twice changes nothing

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the file, created if necessary. Cuts off a line that a crash left incomplete. Yields the size."""
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
            self._prepare()
            self._loaded = self._read_cursor()
        return self._loaded

    def _read_cursor(self) -> _Cursor:
        """Read the cursor; one that is damaged or does not fit the file counts as 0."""
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
        """Write the cursor. A disk that refuses it only causes records to be sent again after a crash."""
        cursor = self._cursor()
        content = {"format_version": FORMAT_VERSION, "offset": cursor.offset, "refused": sorted(cursor.refused)}
        with suppress(OSError), replacing(self._folder / CURSOR_NAME, durable=False) as aside:
            aside.write_text(json.dumps(content) + "\n", encoding="utf-8")

    def _prepare(self) -> None:
        """Check the format of the file. Move the records of a version before 0.1.0 into it.

        Raises:
            DataError: The outbox has a newer format.
            OSError: A file cannot be read or written.
        """
        if self._is_prepared:
            return
        next(self._lines(0), None)
        sent, pending = read_sent(self._folder), read_pending(self._folder)
        if sent or pending:
            with self._locked() as size:
                if not size:
                    self._write([_HEADER], sent and with_metrics(sent, self._folder / METRICS_NAME, pending.values()))
                    self._loaded = _Cursor(self._path.stat().st_size)
                    self._save_cursor()
                self._write(pending.values())
            (self._folder / SENT_NAME).unlink(missing_ok=True)
            self._delete_old(pending)
        self._is_prepared = True

    def _write(self, *parts: Iterable[Record | str]) -> None:
        """Append records, or the text of damaged ones. Requires the lock."""
        lines = [item if isinstance(item, str) else json.dumps(item) for part in parts for item in part]
        append_whole(self._path, "".join(f"{line}\n" for line in lines), create=False)

    def _delete_old(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or not there
            (self._folder / PENDING_NAME).rmdir()

    def _warn_of_refusal(self, error: OSError) -> None:
        what = f"cannot write tracking records to {self._folder}: {error.strerror or error}"
        logger.warning("%s; training continues, and they are held in memory", what)

    def _warn_of_recovery(self) -> None:
        logger.warning("tracking records are written to %s again", self._folder)


def _is_header(path: Path, record: Record | None) -> bool:
    if record is None or record["op"] != _HEADER["op"]:
        return False
    version = record.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {version}, this program reads version {FORMAT_VERSION}: update dstransformer"
        )
    return True


def _joins(lines: Sequence[_Line], line: _Line) -> bool:
    """Whether a line belongs to a batch of metrics."""
    if line.record is None or line.record["op"] != "metrics":
        return False
    return sum(len(each.record["metrics"]) for each in (*lines, line) if each.record) <= METRICS_PER_BATCH


def _merge(lines: Sequence[_Line]) -> Batch:
    offsets, end = tuple(line.offset for line in lines), lines[-1].end
    records = [line.record for line in lines if line.record is not None]
    if len(records) == 1:
        return Batch(records[0], offsets, end)
    return Batch({"op": "metrics", "metrics": [each for record in records for each in record["metrics"]]}, offsets, end)


def _end_of_lines(descriptor: int) -> int:
    """The end of the last complete line of a file."""
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - 65536)
        if (found := os.pread(descriptor, end - begin, begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end = begin
    return 0
