"""Finds the processes of a run that hang or are dead, from what all of them have reported. Sends no messages itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

#: The phase of a process that computes an update, or waits for the data of the next. Others have their own limit.
UPDATE = "update"

#: The phase of a process that left the run because of an error that the others do not know of.
FAILED = "an error of its own"

#: The phase of a process that left the run as all others do. It is no longer watched.
LEFT = "the end"

#: What is wrong with the ranks to blame, see :class:`Verdict`.
Blame = Literal["failed", "hung", "silent", "died", "connection"]

#: Maximum number of ranks that a message names; it counts the rest.
_MAX_NAMED = 8


class Limits(NamedTuple):
    """How long a run waits, in seconds; infinity sets no limit.

    Attributes:
        update: For an update, or one micro-batch of it (``training.hang_seconds``).
        phase: For any other phase: set-up, validation, a checkpoint (``training.wait_seconds``).
        silence: For a heartbeat of a process (``training.silence_seconds``).
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
        """Seconds between two heartbeats."""
        return min(2.0, min(self) / 4)

    @property
    def confirmation(self) -> float:
        """Seconds without a heartbeat that are enough once a connection to some process has broken."""
        return min(self.silence, 4 * self.interval)


class Verdict(NamedTuple):
    """Why supervision ends a run.

    Attributes:
        cause: What is wrong with the ranks: an error of their own that no other rank has, a hang, silence, death, or a
            lost connection.
        ranks: The ranks that are to blame.
        text: One line that names them, and says where all were.
    """

    cause: Blame
    ranks: list[int]
    text: str


class RankStatus(NamedTuple):
    """What a process reports of itself.

    Attributes:
        host: Its machine.
        update: The update it computes, or has computed last.
        phase: What it does: :data:`UPDATE`, :data:`FAILED`, :data:`LEFT`, or any other words.
        steps: Number of its reports so far. All processes of a run make the same reports in the same order.
        waits: Whether it waits for the other processes.
        broken_connection: The message of its connection that broke; empty if none did.
    """

    host: str
    update: int
    phase: str
    steps: int
    waits: bool = False
    broken_connection: str = ""

    def describe(self) -> str:
        """``update 41, validation``."""
        return f"update {self.update}, {self.phase}"


class Heartbeat(NamedTuple):
    """The last report of a process.

    Attributes:
        status: What it reported.
        number: 1-based count of its reports.
        last_heartbeat: When its thread last reported, in seconds.
        last_progress: When the process itself last entered another phase or micro-batch, in seconds.
    """

    status: RankStatus
    number: int
    last_heartbeat: float
    last_progress: float


def find_dead(
    known: Mapping[int, Heartbeat], ranks: Collection[int], limits: Limits, now: float, began: float
) -> Verdict | None:
    """Find those of ``ranks`` that have died, stopped or left. Returns None if there are none.

    ``known`` lacks the processes never heard of. ``now``, and ``began`` of the watch, are in seconds of its clock.
    """
    failed = [
        rank
        for rank, heartbeat in known.items()
        if heartbeat.status.phase == FAILED
        and now - heartbeat.last_progress > limits.confirmation  # the others may get the same error
    ]
    if failed:
        return _blame("failed", failed, "ended with an error, see there", known)
    lost = [rank for rank, heartbeat in known.items() if heartbeat.status.broken_connection]
    limit = limits.confirmation if lost else limits.silence
    silent = [
        rank
        for rank in sorted(ranks)
        if now - (known[rank].last_heartbeat if rank in known else began) > limit
        and (rank not in known or known[rank].status.phase not in (LEFT, FAILED))
    ]
    if silent and not _may_be_more(known, silent, limits, limit, now):
        if lost:
            return _blame("died", silent, "died or stopped", known)
        return _blame("silent", silent, f"not answered for {limits.silence:g} s (training.silence_seconds)", known)
    if lost and all(now - known[rank].last_progress > 4 * limits.confirmation for rank in lost):
        return _blame("connection", lost, f"lost a connection ({known[lost[0]].status.broken_connection})", known)
    return None


def _may_be_more(
    known: Mapping[int, Heartbeat], silent: Collection[int], limits: Limits, limit: float, now: float
) -> bool:
    """Whether the first silent process fell silent so recently that others may have died together with it.

    The last heartbeats of processes that die together are up to an interval apart, and are read up to an interval
    later.
    """
    apart = 2 * limits.interval
    latest = any(
        heartbeat.status.phase not in (LEFT, FAILED) and apart < now - heartbeat.last_heartbeat
        for rank, heartbeat in known.items()
        if rank not in silent
    )
    return latest and all(now - known[rank].last_heartbeat <= limit + apart for rank in silent if rank in known)


def find_hung(known: Mapping[int, Heartbeat], limits: Limits, now: float) -> Verdict | None:
    """Find processes that keep the others waiting for too long: those with the fewest reports.

    Returns None if there are none. ``now`` is in seconds of the clock of ``known``, which has all processes.
    """
    present = {rank: heartbeat for rank, heartbeat in known.items() if heartbeat.status.phase != LEFT}
    least = min((heartbeat.status.steps for heartbeat in present.values()), default=0)
    behind = {rank: heartbeat for rank, heartbeat in present.items() if heartbeat.status.steps == least}
    for heartbeat in behind.values():
        status = heartbeat.status
        updating = status.phase == UPDATE
        limit = limits.update if updating else limits.phase
        if now - heartbeat.last_progress > limit:
            blamed = [rank for rank, other in behind.items() if not other.status.waits] or list(behind)
            key = "training.hang_seconds" if updating else "training.wait_seconds"
            where = f"update {status.update}" if updating else f"{status.phase} (update {status.update})"
            return _blame("hung", blamed, f"been in {where} for more than {limit:g} s ({key})", known)
    return None


def _blame(cause: Blame, ranks: list[int], what: str, known: Mapping[int, Heartbeat]) -> Verdict:
    """The verdict on ranks that have done ``what``."""
    has = "has" if len(ranks) == 1 else "have"
    return Verdict(cause, ranks, f"{name_ranks(ranks, known)} {has} {what}; {describe(known)}")


def name_ranks(ranks: Iterable[int], known: Mapping[int, Heartbeat]) -> str:
    """``rank 3 on node7``, ``ranks 1, 3 on node7, node8``."""
    named = sorted(ranks)
    hosts = ", ".join(dict.fromkeys(known[rank].status.host for rank in named[:_MAX_NAMED] if rank in known))
    return _list(named) + (f" on {hosts}" if hosts else " (never heard of)")


def describe(known: Mapping[int, Heartbeat]) -> str:
    """Where the processes are: ``ranks 0, 2: update 41, update; rank 1: update 40, checkpoint``."""
    groups: dict[str, list[int]] = {}
    for rank, heartbeat in sorted(known.items()):
        groups.setdefault(heartbeat.status.describe(), []).append(rank)
    return "; ".join(f"{_list(ranks)}: {where}" for where, ranks in groups.items())


def _list(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:_MAX_NAMED]))}{more}"
