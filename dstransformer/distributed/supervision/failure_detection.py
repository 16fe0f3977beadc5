"""Decides from what the processes of a run report whether one of them hangs or is gone, and says which. No messages."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

#: The phase of a process that computes an update, or waits for the data of the next. Others have a limit of their own.
UPDATE = "update"

#: The phase of a process that left the run because of an error that the others do not know of.
FAILED = "an error of its own"

#: The phase of a process that left the run as all others do. It is not watched any more.
LEFT = "the end"

#: Ranks that a message names before it only counts them.
_NAMED = 8


class Limits(NamedTuple):
    """How long a run waits, in seconds; infinity for ever.

    Attributes:
        update: For an update, or one micro-batch of it (``training.hang_seconds``).
        phase: For any other phase: set-up, validation, a checkpoint (``training.wait_seconds``).
        silence: For a sign of life of a process (``training.silence_seconds``).
    """

    update: float
    phase: float
    silence: float

    @classmethod
    def build(cls, hang_seconds: float, wait_seconds: float, silence_seconds: float) -> Limits:
        """From values of the configuration, where 0 turns a limit off."""
        return cls(hang_seconds or math.inf, wait_seconds or math.inf, silence_seconds or math.inf)

    @property
    def interval(self) -> float:
        """Seconds between two signs of life."""
        return min(2.0, min(self) / 4)

    @property
    def confirmation(self) -> float:
        """Seconds without a sign of life that are enough once a connection to some process has broken."""
        return min(self.silence, 4 * self.interval)


class Place(NamedTuple):
    """Where a process is.

    Attributes:
        host: Its machine.
        update: The update it computes, or has computed last.
        phase: What it does: :data:`UPDATE`, :data:`FAILED`, :data:`LEFT`, or any other words.
        steps: Number of its reports so far. All processes of a run make the same reports in the same order.
        waits: Whether it waits for the other processes.
        lost: The message of a connection that broke under it; empty if none did.
    """

    host: str
    update: int
    phase: str
    steps: int
    waits: bool = False
    lost: str = ""

    def describe(self) -> str:
        """``update 41, validation``."""
        return f"update {self.update}, {self.phase}"


class Seen(NamedTuple):
    """The last report of a process, and when its thread and the process itself last showed progress, in seconds."""

    place: Place
    beats: int
    heard: float
    moved: float


def find_gone(seen: Mapping[int, Seen], ranks: Collection[int], limits: Limits, now: float, began: float) -> str | None:
    """Which processes have died, stopped or left, in one line; None if none is known to.

    Args:
        seen: What is known of each process; those never heard of are missing.
        ranks: The processes to look for.
        limits: How long to wait.
        now: The time, in seconds of the clock of ``seen``.
        began: When the watch began.
    """
    failed = [
        rank
        for rank, one in seen.items()
        if one.place.phase == FAILED and now - one.moved > limits.confirmation  # the others may meet it too
    ]
    if failed:
        return f"{name_ranks(failed, seen)} {_has(failed)} ended with an error, see there; {describe(seen)}"
    lost = [rank for rank, one in seen.items() if one.place.lost]
    patience = limits.confirmation if lost else limits.silence
    silent = [
        rank
        for rank in sorted(ranks)
        if now - (seen[rank].heard if rank in seen else began) > patience
        and (rank not in seen or seen[rank].place.phase not in (LEFT, FAILED))
    ]
    if silent and not _may_be_more(seen, silent, limits, patience, now):
        what = "died or stopped" if lost else f"not answered for {limits.silence:g} s (training.silence_seconds)"
        return f"{name_ranks(silent, seen)} {_has(silent)} {what}; {describe(seen)}"
    if lost and all(now - seen[rank].moved > 4 * limits.confirmation for rank in lost):
        return f"{name_ranks(lost, seen)} {_has(lost)} lost a connection ({seen[lost[0]].place.lost}); {describe(seen)}"
    return None


def _may_be_more(
    seen: Mapping[int, Seen], silent: Collection[int], limits: Limits, patience: float, now: float
) -> bool:
    """Whether the first silent process was missed so lately that others may have been lost together with it.

    Of processes that die at once, the last signs of life are up to an interval apart, and as much again until they are
    read.
    """
    apart = 2 * limits.interval
    latest = any(
        one.place.phase not in (LEFT, FAILED) and apart < now - one.heard
        for rank, one in seen.items()
        if rank not in silent
    )
    return latest and all(now - seen[rank].heard <= patience + apart for rank in silent if rank in seen)


def find_stuck(seen: Mapping[int, Seen], limits: Limits, now: float) -> str | None:
    """Which processes the others wait for, if these take too long, in one line: those with the fewest reports.

    Args:
        seen: What is known of all processes.
        limits: How long to wait.
        now: The time, in seconds of the clock of ``seen``.
    """
    present = {rank: one for rank, one in seen.items() if one.place.phase != LEFT}
    least = min((one.place.steps for one in present.values()), default=0)
    behind = {rank: one for rank, one in present.items() if one.place.steps == least}
    for one in behind.values():
        updating = one.place.phase == UPDATE
        limit = limits.update if updating else limits.phase
        if now - one.moved > limit:
            blamed = [rank for rank, other in behind.items() if not other.place.waits] or list(behind)
            key = "training.hang_seconds" if updating else "training.wait_seconds"
            where = f"update {one.place.update}" if updating else f"{one.place.phase} (update {one.place.update})"
            return (
                f"{name_ranks(blamed, seen)} {_has(blamed)} been in {where} for more than {limit:g} s ({key}); "
                f"{describe(seen)}"
            )
    return None


def name_ranks(ranks: Iterable[int], seen: Mapping[int, Seen]) -> str:
    """``rank 3 on node7``, ``ranks 1, 3 on node7, node8``."""
    named = sorted(ranks)
    hosts = ", ".join(dict.fromkeys(seen[rank].place.host for rank in named[:_NAMED] if rank in seen))
    return _list(named) + (f" on {hosts}" if hosts else " (never heard of)")


def describe(seen: Mapping[int, Seen]) -> str:
    """Where the processes are: ``ranks 0, 2: update 41, update; rank 1: update 40, checkpoint``."""
    groups: dict[str, list[int]] = {}
    for rank, one in sorted(seen.items()):
        groups.setdefault(one.place.describe(), []).append(rank)
    return "; ".join(f"{_list(ranks)}: {where}" for where, ranks in groups.items())


def _list(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:_NAMED]))}{more}"


def _has(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
