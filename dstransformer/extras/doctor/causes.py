"""Why a run ended: the first error of its ranks, and what to do about it."""

from __future__ import annotations

import os
import platform
import re
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dstransformer.distributed.supervision.past_run import PastRun, RankRecord
from dstransformer.errors import RUN_AGAIN
from dstransformer.io.files import RESUME_ADVICE

AGAIN = "run the same command again: it resumes from the newest checkpoint, or starts over if there is none"

_MEMORY = (
    "use more processes, or --ds zero2 or zero3 with offload_optimizer, or training.activation_checkpointing=true; "
    "`dst train … --dry-run` estimates the memory"
)
_KERNEL_LOG = "`dmesg -T | grep -i killed` on {host} says whether memory ran out there"

#: What an error says, and what to do. Errors of this package say it themselves.
_ADVICE = (
    (r"out of memory|OutOfMemoryError|MemoryError|can't allocate memory|not enough memory|failed to allocate", _MEMORY),
    (r"No space left|Disk quota exceeded|File too large", RESUME_ADVICE),
    (r"Read-only file system|Input/output error|Stale file handle", f"look at that disk; then {AGAIN}"),
    (r"training\.(hang|wait)_seconds", "the stacks in logs/rank-*.log say where it hangs; check GPUs and network"),
    (r"has not answered|have not answered", f"look at that machine and at the network to it; then {AGAIN}"),
    (r"NCCL|gloo|lost a connection", f"NCCL_DEBUG=INFO shows more; see GLOO_SOCKET_IFNAME; then {AGAIN}"),
    (r"^\w*(Error|Exception)\b", "a bug, or a fault of the machine: please report it with logs/"),
)

#: An error that follows from that of another process.
_CONSEQUENCE = "another process of the run has ended or does not respond"

#: The kernel's log.
_KMSG = Path("/dev/kmsg")


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


def find_cause(past: PastRun) -> Cause:
    """Why a run ended in which no process trains now."""
    if past.status == 0:
        return Cause("finished", is_fault=False)
    if past.status == RUN_AGAIN:
        launcher = next((text for each in past.ranks.values() for text in each.warnings if "was killed" in text), "")
        return Cause(f"stopped: {launcher}" if launcher else "stopped by a signal", AGAIN, is_fault=False)
    if past.status == 128 + signal.SIGINT:
        return Cause("ended by a second Ctrl-C, without a checkpoint of its last update", AGAIN, is_fault=False)
    if (first := _first_error(past)) is not None:
        where = f"rank {first.rank} on {first.host}: " if first.world_size > 1 else ""
        return Cause(f"{where}{first.error}", _advise(first.error))
    return _explain_end(past)


def _explain_end(past: PastRun) -> Cause:
    """Why a run ended of which no rank has logged an error of its own."""
    lost = [each for each in past.ranks.values() if not each.is_over]
    if verdict := past.verdict or next((each.verdict for each in past.ranks.values() if each.verdict), ""):
        is_death = "died or stopped" in verdict or "has died" in verdict
        return Cause(verdict, _explain_death(lost) if is_death else _advise(verdict))
    if past.status is not None:
        return Cause(f"ended with status {past.status}; no log says why", "read what the launcher printed")
    if not lost:
        return Cause("nothing says when or how it ended", "read what the launcher printed, or run the command again")
    who = "its process" if len(past.ranks) == 1 else f"{len(lost)} of its {len(past.ranks)} processes"
    last = min(lost, key=lambda each: each.rank)
    where = f"in update {last.update} or later" if last.update else "at the start"
    if last.phase not in ("", "update"):
        where += f" ({last.phase})"
    text = f"{who} ended without a word, {where}: killed (kill -9), or the machine failed"
    return Cause(text, _explain_death(lost))


def _first_error(past: PastRun) -> RankRecord | None:
    """The rank whose error came first and is no consequence of another's; None if there is none."""
    own = [each for each in past.ranks.values() if each.error and _CONSEQUENCE not in each.error]
    return min(own, key=lambda each: (each.last, each.rank), default=None)


def _advise(text: str) -> str:
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, text)), "")


def _explain_death(lost: Collection[RankRecord]) -> str:
    """What to do about processes that were killed, and whether the kernel did so because memory ran out."""
    here = {each.process for each in lost if each.host == platform.node()}
    if here & killed_for_memory():
        return f"the kernel killed it because this machine's memory ran out: {_MEMORY}"
    hosts = sorted({each.host for each in lost} - {platform.node()})
    look = _KERNEL_LOG.format(host=", ".join(hosts) or "this machine")
    return f"{look}; if not, {AGAIN}"


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
