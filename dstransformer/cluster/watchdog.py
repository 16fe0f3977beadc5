"""Ends a run when one of its processes hangs or dies, and says which one, and where each of them was.

Every process has a thread that writes what the process is doing to the store of the process group. Rank 0's reads what
all have written, the others read rank 0's and its verdict. Processes that wait for each other cannot do this: a
collective waits for its slowest member, and a timeout does not say which that was.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

#: A process that has written nothing for so many seconds is dead, stopped, or cut off.
SILENCE_SECONDS = 60.0

#: The exit status of a process that its watchdog ends.
STATUS = 1

#: The phase of a process that is limited: an update, and waiting for the data of the next.
UPDATE = "update"

_VERDICT = "verdict"

#: Seconds that a process gives the others to read the verdict and to write where they are.
_LAST_WORDS = 2.0


class Place(NamedTuple):
    """Where a process is.

    Attributes:
        host: Its machine.
        update: The update it computes, or has computed last.
        phase: What it does: :data:`UPDATE`, or something that may take as long as it likes.
        steps: Number of its reports so far.
    """

    host: str
    update: int
    phase: str
    steps: int


class _Seen(NamedTuple):
    """The last report of a process, and when its thread and the process itself last showed a sign of life."""

    place: Place
    beats: int
    heard: float
    moved: float


class Watchdog:
    """Watches the processes of a run while training. A context manager.

    Args:
        store: The store of the process group; a client of its own, as the main thread uses the other.
        rank: Rank of this process.
        world_size: Number of processes.
        limit: Seconds that an update, or one micro-batch of it, may take.
        log: File for the stacks of this process.
    """

    def __init__(self, store: Any, rank: int, world_size: int, limit: float, log: Path) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._limit = limit
        self._interval = min(5.0, limit / 4)
        self._silence = min(limit, SILENCE_SECONDS)
        self._log = log
        self._place = Place(platform.node(), 0, "start", 0)
        self._beats = 0
        self._seen: dict[int, _Seen] = {}
        self._ended = threading.Event()
        self._round = time.monotonic()
        self._threads = [
            threading.Thread(target=target, name=f"watchdog {target.__name__}", daemon=True)
            for target in (self._watch, self._guard)
        ]

    def __enter__(self) -> Watchdog:
        self._write()
        self._round = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()

    def report(self, update: int, phase: str) -> None:
        """Say what this process does now. Costs nothing: the thread passes it on."""
        self._place = Place(self._place.host, update, phase, self._place.steps + 1)

    def find_gone(self) -> str | None:
        """After a collective has failed: the processes that show no sign of life any more, in words; None if all do."""
        try:
            before = {rank: one.beats for rank, one in self._read(range(self._world_size)).items()}
            time.sleep(3 * self._interval)
            seen = self._read(range(self._world_size))
            gone = [rank for rank, one in seen.items() if before.get(rank) == one.beats]
        except Exception:  # the store is on the node of rank 0
            return "rank 0 does not answer"
        return f"{_name(gone, seen)} {_has(gone)} died or stopped; {_describe(seen)}" if gone else None

    def _watch(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self._write()
                verdict = self._read_verdict()
                if verdict is None and self._rank == 0:
                    verdict = self._judge(self._read(range(self._world_size)))
                elif verdict is None:
                    verdict = self._judge(self._read([0]))
            except Exception as error:  # the store is on the node of rank 0
                if self._ended.is_set():
                    return
                self._end(f"rank 0 does not answer ({(str(error).splitlines() or [''])[0][:200]})", alone=True)
                return
            self._round = time.monotonic()
            if verdict is not None:
                self._end(verdict)

    def _guard(self) -> None:
        """Watch the thread that watches: it waits for ever when rank 0, which has the store, is stopped."""
        while not self._ended.wait(self._interval):
            if time.monotonic() - self._round > self._silence + self._interval:
                self._end(f"rank 0 does not answer, for {self._silence:.0f} s", alone=True)

    def _write(self) -> None:
        self._beats += 1
        self._store.set(f"rank/{self._rank}", json.dumps([*self._place, self._beats]))

    def _read_verdict(self) -> str | None:
        return self._store.get(_VERDICT).decode() if self._store.check([_VERDICT]) else None

    def _read(self, ranks: Iterable[int]) -> Mapping[int, _Seen]:
        """The reports of these processes; those that have not reported yet are left out."""
        now = time.monotonic()
        for rank in ranks:
            key = f"rank/{rank}"
            if not self._store.check([key]):
                continue
            *values, beats = json.loads(self._store.get(key))
            place, before = Place(*values), self._seen.get(rank)
            self._seen[rank] = _Seen(
                place,
                beats,
                now if before is None or before.beats != beats else before.heard,
                now if before is None or before.place != place else before.moved,
            )
        return self._seen

    def _judge(self, seen: Mapping[int, _Seen]) -> str | None:
        """What is wrong, in one line; None if nothing is known to be."""
        now = time.monotonic()
        silent = [rank for rank, one in seen.items() if now - one.heard > self._silence]
        if silent:
            return f"{_name(silent, seen)} {_has(silent)} not answered for {self._silence:.0f} s; {_describe(seen)}"
        stuck = [rank for rank, one in seen.items() if one.place.phase == UPDATE and now - one.moved > self._limit]
        if not stuck:
            return None
        # The others wait for the one that is furthest behind, though its last report may have come later than theirs.
        where = {rank: one.place[1:] for rank, one in seen.items() if one.place.phase == UPDATE}
        behind = [rank for rank in where if where[rank] == min(where.values())]
        return (
            f"{_name(behind, seen)} {_has(behind)} been in update {seen[behind[0]].place.update} for more than "
            f"{self._limit:.0f} s (training.hang_seconds); {_describe(seen)}"
        )

    def _end(self, verdict: str, *, alone: bool = False) -> None:
        """Pass the verdict on, unless the store is gone (``alone``), write where this process is, and end it."""
        if not alone:
            with suppress(Exception):
                self._store.set(_VERDICT, verdict)
        with suppress(OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} rank {self._rank}, {self._place}: {verdict}\n")
                log.flush()
                faulthandler.dump_traceback(log, all_threads=True)
        time.sleep(_LAST_WORDS)
        if self._ended.is_set():
            return
        with suppress(OSError):
            sys.stderr.flush()
            if self._rank == 0 or alone or verdict.startswith(("rank 0 ", "ranks 0,")):
                os.write(2, f"dst: error: {verdict}. Stacks of all ranks are in {self._log.parent}\n".encode())
        os._exit(STATUS)


def _has(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _name(ranks: list[int], seen: Mapping[int, _Seen]) -> str:
    """``rank 3 on node7``, ``ranks 1, 3 on node7, node8``."""
    hosts = ", ".join(dict.fromkeys(seen[rank].place.host for rank in ranks[:8]))
    numbers = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers} on {hosts}"


def _describe(seen: Mapping[int, _Seen]) -> str:
    """Where the processes are: ``ranks 0, 2: update 41, update``."""
    groups: dict[str, list[int]] = {}
    for rank, one in sorted(seen.items()):
        groups.setdefault(f"update {one.place.update}, {one.place.phase}", []).append(rank)
    return "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:8]))}: {where}"
        for where, ranks in groups.items()
    )


def open_store() -> Any:
    """A client of the process group's store for another thread."""
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d.PrefixStore("watchdog", distributed_c10d._get_default_store())
    store = store.clone() if hasattr(store, "clone") else store  # PyTorch 2.11 has no clone
    store.set_timeout(timedelta(seconds=SILENCE_SECONDS))
    return store
