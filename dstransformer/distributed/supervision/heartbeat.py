"""Ends a run when one of its processes hangs or dies, and says which one, and where each of them was.

A thread of every process writes what the process is doing to the store through which the processes joined. The thread
of rank 0 reads the reports of all ranks; the others read that of rank 0, and its verdict. The main threads cannot do
this: a collective waits for its slowest member, and a timeout does not say which one that was.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision.failure_detection import (
    FAILED,
    LEFT,
    Heartbeat,
    Limits,
    RankStatus,
    Verdict,
    describe,
    find_dead,
    find_hung,
    name_ranks,
)
from dstransformer.distributed.supervision.rank_log import LOGS, VERDICTS, RankLog, read_end
from dstransformer.errors import DstError

#: The exit status of a process that its monitor ends.
EXIT_STATUS = 1

_VERDICT, _OVERVIEW, _PRINTED = "verdict", "overview", "printed"

#: Seconds that dumping the stacks and each action at the end may take: they may hang as the process does.
_END_SECONDS = 15.0

#: Seconds that the store may take to answer at the end.
_STORE_SECONDS = 5.0

T = TypeVar("T")


class HeartbeatMonitor:
    """Watches the processes of a run. A context manager around all that they do together.

    A process alone is not watched. Time in which this process itself did not run, as when a job is suspended or a
    laptop sleeps, does not count.

    Attributes:
        log: The log of this process.
    """

    def __init__(self, processes: Processes, limits: Limits, log: RankLog) -> None:
        self._rank = processes.rank
        self._world_size = processes.world_size
        self._limits = limits
        self.log = log
        self._at_end: list[Callable[[], None]] = []
        self._store: Any = None
        self._status = RankStatus(platform.node(), 0, "set-up", 0)
        self._number = 0
        self._known: dict[int, Heartbeat] = {}
        self._overview = ""
        self._stopped = threading.Event()
        self._verdict: Verdict | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._began = self._round = time.monotonic()

    def start(self, host: str, port: int, prefix: str = "") -> None:
        """Start watching, once all processes have reached the store at ``host:port``.

        The keys of this attempt have a ``prefix`` there.
        """
        if self._world_size == 1:
            return
        self._store = _open_store(host, port, prefix)
        self._began = self._round = time.monotonic()
        for target in (self._watch, self._watch_rank0):
            thread = threading.Thread(target=target, name=f"heartbeat {target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def __enter__(self) -> HeartbeatMonitor:
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        self.stop(error)

    def stop(self, error: BaseException | None = None) -> None:
        """Stop watching, because of an error or at the end of the run. Later calls do nothing."""
        if self._stopped.is_set():
            return
        with self._lock:
            decided = self._verdict is not None
            if not decided:
                self._stopped.set()
        if decided:  # the error is a consequence of the verdict, with which another thread ends this process
            time.sleep(4 * _END_SECONDS)
            self._stopped.set()
        if self._store is not None:
            alone = error is not None and not (isinstance(error, DstError) and error.shared)
            self.report(self._status.update, FAILED if alone else LEFT)
            _attempt(self._write, self._limits.interval)
        # Python 3.11 aborts if it ends while a thread waits for the store.
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_STORE_SECONDS)

    @contextmanager
    def calling_at_end(self, action: Callable[[], None]) -> Iterator[None]:
        """In the block: call ``action`` on rank 0, in another thread, before the monitor ends this process.

        The action stays if the block fails, as a failure may be the consequence of a verdict.
        """
        self._at_end.append(action)
        yield
        self._at_end.remove(action)

    def report(self, update: int, phase: str) -> None:
        """Report what this process does now. Returns at once; the thread writes it."""
        self._status = self._status._replace(update=update, phase=phase, steps=self._status.steps + 1, waits=False)
        self.log.enter(update, phase)

    def enter(self, phase: str) -> None:
        """Report what this process does now, at the same update."""
        self.report(self._status.update, phase)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In the block, report that this process waits for the others, so that it does not count as hung."""
        self._status = self._status._replace(waits=True)
        try:
            yield
        finally:
            self._status = self._status._replace(waits=False)

    def wait_for_verdict(self, error: Exception) -> None:
        """After a collective has failed: wait for the verdict on the process that is gone, which ends this process.

        Returns if there is no verdict in time, and at once if it has waited before.
        """
        if self._status.broken_connection:
            return
        self.log.note(error)
        if self._store is not None and not self._stopped.is_set():
            self._status = self._status._replace(broken_connection=str(error)[:500])
            self._stopped.wait(8 * self._limits.confirmation + _END_SECONDS)

    def _watch(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            pause = self._limits.interval
            try:
                self._write()
                verdict = self._read_verdict() or self._find_failure()
                self._share_overview()
            except Exception as error:  # the store is on the node of rank 0
                if not self._stopped.wait(self._limits.confirmation):  # at the end of a run rank 0 may leave first
                    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
                    self._end(self._blame_rank0("died", f"died, or cannot be reached ({reason})"))
                return
            self._round = time.monotonic()
            if verdict is not None:
                self._end(verdict)
                return

    def _watch_rank0(self) -> None:
        """Watch the other thread, which waits forever for the store of a rank 0 that is suspended."""
        before = resumed = time.monotonic()
        while not self._stopped.wait(self._limits.interval):
            now = time.monotonic()
            if now - before > 3 * self._limits.interval:  # this process was suspended
                resumed = now
            before = now
            if now - max(self._round, resumed) > self._limits.silence + self._limits.interval:
                what = f"not answered for {self._limits.silence:g} s (training.silence_seconds)"
                self._end(self._blame_rank0("silent", what))
                return

    def _reset_after_suspension(self, now: float) -> None:
        """If this process did not run, or waited for the store, for long: restart the limits of the others."""
        if now - self._round > 3 * self._limits.interval:
            self._began = now
            self._known = {
                rank: one._replace(last_heartbeat=now, last_progress=now) for rank, one in self._known.items()
            }

    def _find_failure(self) -> Verdict | None:
        """On rank 0, look for a failure of any process; on other ranks, of rank 0. Returns None or a verdict."""
        everyone = range(self._world_size)
        self._read([0, self._rank] if self._rank else everyone)
        now = time.monotonic()
        self._reset_after_suspension(now)
        if self._rank:
            return find_dead(self._known, [0], self._limits, now, self._began)
        gone = find_dead(self._known, everyone, self._limits, now, self._began)
        return gone or find_hung(self._known, self._limits, now)

    def _write(self) -> None:
        self._number += 1
        self._store.set(f"rank/{self._rank}", json.dumps([*self._status, self._number]))

    def _read_verdict(self) -> Verdict | None:
        return Verdict(*json.loads(self._store.get(_VERDICT))) if self._store.check([_VERDICT]) else None

    def _read(self, ranks: Iterable[int]) -> None:
        """Read the reports of these processes; on rank 0, those that have not reported yet are left out."""
        known = [rank for rank in ranks if self._rank or rank in self._known or self._store.check([f"rank/{rank}"])]
        reports = self._store.multi_get([f"rank/{rank}" for rank in known]) if known else []
        now = time.monotonic()
        for rank, report in zip(known, reports, strict=True):
            *values, number = json.loads(report)
            status, before = RankStatus(*values), self._known.get(rank)
            self._known[rank] = Heartbeat(
                status,
                number,
                now if before is None or before.number != number else before.last_heartbeat,
                now if before is None or before.status.steps != status.steps else before.last_progress,
            )

    def _share_overview(self) -> None:
        """On rank 0, write where all processes are; on other ranks read it, in case rank 0 is the one that dies."""
        if self._rank == 0:
            self._store.set(_OVERVIEW, describe(self._known))
        elif self._store.check([_OVERVIEW]):
            self._overview = self._store.get(_OVERVIEW).decode()

    def _blame_rank0(self, cause: Literal["died", "silent"], what: str) -> Verdict:
        """The verdict on rank 0, with where this process is, and where all were when rank 0 last said so."""
        where = f"rank {self._rank}: {self._status.describe()}"
        if self._overview:
            where += f"; before, {self._overview}"
        return Verdict(cause, [0], f"{name_ranks([0], self._known)} has {what}; {where}")

    def _end(self, verdict: Verdict) -> None:
        """Share the verdict, dump the stacks of this process, and end it."""
        with self._lock:
            if self._verdict is not None or self._stopped.is_set():
                return
            self._verdict = verdict
        _attempt(lambda: self._store.set(_VERDICT, json.dumps(verdict)), _STORE_SECONDS)
        if self._rank == 0:
            self._print_verdict(verdict)
        _attempt(lambda: self.log.dump_stacks(verdict.text), _END_SECONDS)
        if self._rank == 0:
            for action in tuple(self._at_end):
                _attempt(action, _END_SECONDS)
        time.sleep(2 * self._limits.interval)  # the others read the verdict, and rank 0 prints it before they try
        if self._rank != 0:
            self._print_verdict(verdict)
        os._exit(EXIT_STATUS)

    def _print_verdict(self, verdict: Verdict) -> None:
        """Record and print the verdict, unless another process has."""
        run = self.log.run
        if run is None:
            first = _attempt(lambda: bool(self._store.add(_PRINTED, 1) == 1), _STORE_SECONDS)
        else:
            first = _attempt(lambda: self._record_verdict(run, verdict), _END_SECONDS)
        if first or (first is None and self._rank <= 1):
            logs = "" if run is None else f". Stacks of all ranks are in {run / LOGS}"
            with suppress(OSError):
                sys.stderr.flush()
                os.write(2, f"dst: error: {verdict.text}{logs}\n".encode())

    def record_error(self, error: BaseException) -> None:
        """Write how the run ended, see :meth:`RankLog.record_error`, unless the file system hangs."""
        _attempt(lambda: self.log.record_error(error), _END_SECONDS)

    def _record_verdict(self, run: Path, verdict: Verdict) -> bool | None:
        """Record the verdict as the end of the run.

        Returns:
            Whether this process is the first with a verdict; None if it cannot be written.
        """
        written = self.log.record_end(verdict.cause, verdict.text, EXIT_STATUS, verdict.ranks)
        if written or written is None:
            return written
        recorded = read_end(run)  # a verdict, or an error of the rank that this verdict is about
        return self._rank == 0 and recorded is not None and recorded.cause not in VERDICTS


def _attempt(action: Callable[[], T], seconds: float) -> T | None:
    """Run something that may fail or hang. Returns its result; None if it did not finish in time."""
    results: list[T] = []

    def run() -> None:
        with suppress(Exception):
            results.append(action())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def _open_store(host: str, port: int, prefix: str) -> Any:
    """A client of the store for the threads of the monitor only: calls on one client wait for each other."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    client = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
    return PrefixStore(f"{prefix}heartbeat", client)
