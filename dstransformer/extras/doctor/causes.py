"""Why a run ended, from what it has recorded, and what to do about it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dstransformer.distributed.supervision.rank_log import (
    END_NAME,
    MAX_BYTES,
    VERDICTS,
    End,
    RankProcess,
    Start,
    log_path,
    read_end,
    read_start,
)
from dstransformer.errors import DataError
from dstransformer.io.files import RESUME_ADVICE, read_bounded

AGAIN = "run the same command again: it resumes from the newest checkpoint, or starts over if there is none"

_MEMORY = (
    "use more processes, or --ds zero2 or zero3 with offload_optimizer, or training.activation_checkpointing=true; "
    "`dst train … --dry-run` estimates the memory"
)

#: What to do, by the cause. Errors of this package say it themselves.
_ADVICE = {
    "stopped": AGAIN,
    "interrupted": AGAIN,
    "memory": _MEMORY,
    "full disk": RESUME_ADVICE,
    "disk": f"look at that disk; then {AGAIN}",
    "hung": "the stacks in logs/rank-*.log say where it hangs; check GPUs and network",
    "silent": f"look at that machine and at the network to it; then {AGAIN}",
    "connection": f"NCCL_DEBUG=INFO shows more; see GLOO_SOCKET_IFNAME; then {AGAIN}",
    "bug": "a bug, or a fault of the machine: please report it with logs/",
}

#: The kernel's log.
_KMSG = Path("/dev/kmsg")


@dataclass
class PastRun:
    """What a run folder says of the last run in it.

    Attributes:
        start: Who started it; None if nothing says that.
        end: How it ended; None if nothing says that.
        logs: The lines of the log of each rank since its start, as far as the log goes back.
        written: When each rank wrote its log last, in Unix seconds.
        damage: What could not be read.
    """

    start: Start | None = None
    end: End | None = None
    logs: dict[int, list[str]] = field(default_factory=dict)
    written: dict[int, float] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """The warnings and errors that the ranks logged before their end."""
        lines = [line.split(" ", 3) for lines in self.logs.values() for line in lines]  # date, time, level, message
        found = [parts[3] for parts in lines if len(parts) == 4 and parts[2] in ("WARNING", "ERROR", "CRITICAL")]
        return [text for text in found if not text.startswith("ended: ")]


class Cause(NamedTuple):
    """Why a run ended.

    Attributes:
        text: The reason.
        advice: What to do; empty if the reason says it.
        is_fault: Whether something failed; false if the run finished or was asked to stop.
    """

    text: str
    advice: str = ""
    is_fault: bool = True


def read_past_run(run: Path) -> PastRun:
    """Read what the last run in a folder has left behind. Damaged and unreadable files are named in ``damage``."""
    past = PastRun()
    with _noting(past.damage):
        past.start = read_start(run)
    with _noting(past.damage):
        past.end = read_end(run)
    processes = past.start.ranks if past.start else []
    for rank, process in enumerate(processes):
        with _noting(past.damage):
            path = log_path(run, rank)
            text = _read_log(path.with_name(f"{path.name}.1")) + _read_log(path)
            begin = f"rank {rank} of {len(processes)} on {process.host}, process {process.process}, "
            past.logs[rank] = text.rpartition(begin)[2].splitlines()[1:]
            past.written[rank] = path.stat().st_mtime
    return past


def _read_log(path: Path) -> str:
    """The text of a log; empty if it is missing. Stacks at its end may exceed its usual size."""
    try:
        return read_bounded(path, 2 * MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


@contextmanager
def _noting(damage: list[str]) -> Iterator[None]:
    """Note why the block cannot read a file."""
    try:
        yield
    except DataError as error:
        damage.append(str(error))
    except OSError as error:
        damage.append(f"cannot read {error.filename}: {error.strerror}")


def find_cause(past: PastRun) -> Cause:
    """Why a run ended in which no process trains now."""
    end, ranks = past.end, past.start.ranks if past.start else []
    if end is None:
        return _explain_silence(past, ranks)
    if end.cause == "finished":
        return Cause("finished", is_fault=False)
    if end.cause == "stopped":
        return Cause(end.message, AGAIN, is_fault=False)
    if end.cause == "interrupted":
        return Cause("ended by a second Ctrl-C, without a checkpoint of its last update", AGAIN, is_fault=False)
    named = [ranks[rank] for rank in end.ranks if rank < len(ranks)]
    if end.cause == "died":
        return Cause(end.message, _explain_death(named))
    text = end.message
    if end.cause not in VERDICTS and len(ranks) > 1 and named:
        text = f"rank {end.ranks[0]} on {named[0].host}: {text}"
    advice = _ADVICE.get(end.cause, "")
    return Cause(text, "" if advice in text else advice)


def _explain_silence(past: PastRun, ranks: Sequence[RankProcess]) -> Cause:
    """Why a run ended that has recorded no end."""
    if any(END_NAME in text for text in past.damage) or not past.written:
        return Cause("nothing says when or how it ended", "read what the launcher printed, or run the command again")
    first = min(past.written, key=lambda rank: past.written[rank])
    who = "its process" if len(ranks) == 1 else f"its {len(ranks)} processes"
    whose = "its log" if len(ranks) == 1 else f"the log of rank {first} on {ranks[first].host} stops first and"
    last = past.logs[first][-1:] or ["nothing"]
    text = f"{who} ended without a word, killed (kill -9), or the machine failed; {whose} ends with: {last[0]}"
    return Cause(text, _explain_death(ranks))


def _explain_death(ranks: Sequence[RankProcess]) -> str:
    """What to do about processes that were killed, and whether the kernel did so because memory ran out."""
    here = {each.process for each in ranks if each.host == platform.node()}
    if here & killed_for_memory():
        return f"the kernel killed it because this machine's memory ran out: {_MEMORY}"
    hosts = ", ".join(sorted({each.host for each in ranks} - {platform.node()})) or "this machine"
    return f"`dmesg -T | grep -i killed` on {hosts} says whether memory ran out there; if not, {AGAIN}"


def killed_for_memory(log: Path = _KMSG) -> set[int]:
    """The processes that the kernel of this machine has killed because memory ran out, as far as its log tells."""
    killed: set[int] = set()
    with suppress(OSError), os.fdopen(os.open(log, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        line: bytes | None = b"-"
        while line:  # None at the end of the kernel's log
            try:
                line = file.read(8192)
            except BrokenPipeError:  # the kernel has overwritten the line
                continue
            killed.update(int(number) for number in re.findall(rb"Killed process (\d+)", line or b""))
    return killed
