"""Reads what a run has left behind: the logs of its ranks, the verdict and the exit status. Imports no PyTorch."""

from __future__ import annotations

import errno
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from dstransformer.distributed.supervision.heartbeat import VERDICT_NAME
from dstransformer.distributed.supervision.rank_log import LOGS, MAX_BYTES, STATUS_NAME
from dstransformer.errors import DataError

#: Bytes of a log that are read at most; a longer one is not ours.
_LIMIT = 2 * MAX_BYTES

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,\d{3})? (INFO|WARNING|ERROR|CRITICAL) (.*)")
_VERDICT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ended by the watchdog: (.*)")
_START = re.compile(
    r"rank (\d+) of (\d+) on (\S+), process (\d+), dstransformer (\S+), .*started by (.*)",
)
_PHASE = re.compile(r"update (\d+): (.*)")


@dataclass
class RankRecord:
    """What the log of a rank says of its last start. Times are Unix seconds.

    Attributes:
        rank: The rank.
        world_size: The number of processes.
        host: Its machine.
        process: Its process id.
        version: The version of this package.
        launcher: What started it.
        started: When it started.
        last: When it logged last.
        update: The update that it named last.
        phase: What it did then.
        is_over: Whether the log says that it ended.
        error: The error with which it ended; empty if none.
        verdict: Why its monitor ended it; empty if it did not.
        warnings: Its warnings and errors before the end.
    """

    rank: int
    world_size: int
    host: str
    process: int
    version: str
    launcher: str
    started: float
    last: float
    update: int = 0
    phase: str = ""
    is_over: bool = False
    error: str = ""
    verdict: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PastRun:
    """What a run folder says of the last run in it.

    Attributes:
        ranks: The records of the ranks of the last start, by rank.
        verdict: Why supervision ended the run; empty if it did not.
        status: The exit status of the last start; None if none was recorded.
        ended: When that was recorded, in Unix seconds.
        damage: What could not be read.
    """

    ranks: dict[int, RankRecord]
    verdict: str
    status: int | None
    ended: float
    damage: list[str]


def read_past_run(run: Path) -> PastRun:
    """Read what the last start of a run has left behind. Damaged and unreadable files are named in ``damage``."""
    damage: list[str] = []
    ranks = _read_ranks(run / LOGS, damage)
    started = max((record.started for record in ranks.values()), default=0.0)
    status: tuple[int, float] | None = None
    try:
        status = read_exit_status(run / STATUS_NAME)
    except DataError as error:
        damage.append(str(error))
    if status is not None and status[1] < started - 1.0:  # an earlier start's
        status = None
    verdict = _read(run / LOGS / VERDICT_NAME, damage).strip()
    code, ended = status or (None, 0.0)
    return PastRun(ranks, verdict, code, ended, damage)


def read_exit_status(path: Path) -> tuple[int, float] | None:
    """Read an exit status and when it was recorded (Unix seconds); None if there is none.

    Raises:
        DataError: The file is damaged or cannot be read.
    """
    try:
        text = _read_end(path, 100)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if (match := re.fullmatch(r"(\d{1,3}) (\d{1,12}(?:\.\d+)?)\n", text)) is None:
        raise DataError(f"{path} is damaged: it does not hold a status and a time")
    return int(match[1]), float(match[2])


def _read_ranks(folder: Path, damage: list[str]) -> dict[int, RankRecord]:
    """The ranks of the newest start, by rank: logs of ranks that an earlier start had are left out."""
    records = {}
    try:
        paths = sorted(folder.glob("rank-*.log"))
    except OSError as error:
        damage.append(f"cannot read {folder}: {error.strerror}")
        return {}
    for path in paths:
        record = read_rank_log(_read(path.with_name(f"{path.name}.1"), damage) + _read(path, damage))
        if record is None:
            damage.append(f"{path} does not say when its process started")
        else:
            records[record.rank] = record
    size = records[0].world_size if 0 in records else max((each.world_size for each in records.values()), default=0)
    return {rank: record for rank, record in sorted(records.items()) if rank < size}


def read_rank_log(text: str) -> RankRecord | None:
    """What the log of a rank says of its last start; None if it has no start."""
    record: RankRecord | None = None
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None and (start := _START.fullmatch(match[3])) is not None:
            when = _seconds(match[1])
            rank, size, host, process, version, launcher = start.groups()
            record = RankRecord(int(rank), int(size), host, int(process), version, launcher, when, when)
        elif record is None:
            continue
        elif match is not None:
            _add(record, *match.groups())
        elif (verdict := _VERDICT.match(line)) is not None:
            record.verdict, record.is_over = verdict[1], True
        elif record.error.isidentifier() and re.match(rf"(\w+\.)*{record.error}\b", line):
            record.error = line  # below its traceback
    return record


def _add(record: RankRecord, when: str, level: str, message: str) -> None:
    record.last = _seconds(when)
    if message == "ended":
        record.is_over = True
    elif level == "ERROR" and message.startswith("ended: "):
        record.is_over, record.error = True, message.removeprefix("ended: ")
    elif level != "INFO":
        record.warnings.append(message)
    elif (phase := _PHASE.fullmatch(message)) is not None:
        record.update, record.phase = int(phase[1]), phase[2]


def _seconds(text: str) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return 0.0


def _read(path: Path, damage: list[str]) -> str:
    """The text of a file, or its end if it is long; empty if it is missing."""
    try:
        return _read_end(path, _LIMIT)
    except FileNotFoundError:
        return ""
    except OSError as error:
        damage.append(f"cannot read {path}: {error.strerror}")
        return ""


def _read_end(path: Path, limit: int) -> str:
    """The last bytes of a file, at most ``limit``, as text. A pipe or a device is refused: it may have no end."""
    size = path.stat().st_size
    if not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    with path.open("rb") as file:
        file.seek(max(0, size - limit))
        return file.read(limit).decode(errors="replace")
