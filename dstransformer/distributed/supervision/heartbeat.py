"""Ends a run when one of its processes hangs or dies, and says which one, and where each of them was.

Every process has a thread that writes what the process is doing to the store in which the processes met. Rank 0's reads
what all have written, the others read rank 0's and its verdict. Processes that wait for each other cannot do this: a
collective waits for its slowest member, and a timeout does not say which that was.
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
from typing import Any, TypeVar

from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision.failure_detection import (
    FAILED,
    LEFT,
    Limits,
    Place,
    Seen,
    describe,
    find_gone,
    find_stuck,
    name_ranks,
)
from dstransformer.distributed.supervision.rank_log import RankLog
from dstransformer.errors import DstError
from dstransformer.io.files import storage_errors

#: The exit status of a process that its watchdog ends.
STATUS = 1

#: The file in the folder of logs that holds the verdict. The process that creates it prints the verdict too.
VERDICT_NAME = "verdict.txt"

_VERDICT, _OVERVIEW, _SPEAKER = "verdict", "overview", "speaker"

#: Seconds that writing stacks and reporting the end may take, each: both may hang as the process does.
_PATIENCE = 15.0

#: Seconds that the store may take to answer at the end.
_STORE_PATIENCE = 5.0

T = TypeVar("T")


class Watchdog:
    """Watches the processes of a run. A context manager around all that they do together.

    A process alone is not watched. Time in which this process itself did not run, as when a job is suspended or a
    laptop sleeps, does not count.

    Args:
        processes: Rank of this process, and the number of them.
        limits: How long to wait.
        log: The log of this process.
    """

    def __init__(self, processes: Processes, limits: Limits, log: RankLog) -> None:
        self._rank = processes.rank
        self._world_size = processes.world_size
        self._limits = limits
        self._log = log
        self._folder: Path | None = None
        self._store: Any = None
        self._place = Place(platform.node(), 0, "set-up", 0)
        self._beats = 0
        self._seen: dict[int, Seen] = {}
        self._overview = ""
        self._left = threading.Event()
        self._verdict: str | None = None
        self._lock = threading.Lock()
        self._began = self._round = time.monotonic()
        #: Called on rank 0 before it ends, in another thread: the run has failed.
        self.on_end: Callable[[], None] = lambda: None
        #: The same, before that, for what takes no time.
        self.before_end: Callable[[], None] = lambda: None

    def start(self, host: str, port: int, prefix: str = "") -> None:
        """Start watching, once all processes have reached the store at ``host:port``.

        Args:
            host: Its address.
            port: Its port.
            prefix: Of this attempt's keys in it.
        """
        if self._world_size == 1:
            return
        self._store = _open_store(host, port, prefix)
        self._began = self._round = time.monotonic()
        for target in (self._watch, self._guard):
            threading.Thread(target=target, name=f"watchdog {target.__name__}", daemon=True).start()

    def open_folder(self, folder: Path) -> None:
        """Use the folder of logs, which rank 0 has prepared."""
        self._folder = folder
        self._log.open(folder)

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        self.stop(error)

    def stop(self, error: BaseException | None = None) -> None:
        """Stop watching: this process leaves the run, because of an error or at its end. May be called again."""
        if self._left.is_set():
            return
        with self._lock:
            decided = self._verdict is not None
            if not decided:
                self._left.set()
        if decided:  # the error is a consequence of the verdict, with which another thread ends this process
            time.sleep(4 * _PATIENCE)
            self._left.set()
        if self._store is not None:
            alone = error is not None and not (isinstance(error, DstError) and error.shared)
            self.report(self._place.update, FAILED if alone else LEFT)
            _attempt(self._write, self._limits.interval)

    def report(self, update: int, phase: str) -> None:
        """Say what this process does now. Costs nothing: the thread passes it on."""
        self._place = self._place._replace(update=update, phase=phase, steps=self._place.steps + 1, waits=False)
        self._log.enter(update, phase)

    def enter(self, phase: str) -> None:
        """Say what this process does now, after the same update."""
        self.report(self._place.update, phase)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that this process waits for the others in the block, and is not the one that they wait for."""
        self._place = self._place._replace(waits=True)
        try:
            yield
        finally:
            self._place = self._place._replace(waits=False)

    def lose_peer(self, error: Exception) -> None:
        """After a collective has failed: wait until it is known which process is gone, which ends this one.

        Returns if that does not become known.
        """
        if self._store is not None and not self._left.is_set():
            self._place = self._place._replace(lost=str(error)[:500])
            self._left.wait(8 * self._limits.confirmation + _PATIENCE)

    def _watch(self) -> None:
        pause = 0.0
        while not self._left.wait(pause):
            pause = self._limits.interval
            try:
                self._write()
                verdict = self._read_verdict() or self._judge()
                self._share_overview()
            except Exception as error:  # the store is on the node of rank 0
                if not self._left.wait(self._limits.confirmation):  # at the end of a run rank 0 may leave first
                    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
                    self._end(f"{self._name_rank0()} has died, or cannot be reached ({reason}); {self._recall()}")
                return
            self._round = time.monotonic()
            if verdict is not None:
                self._end(verdict)
                return

    def _guard(self) -> None:
        """Watch the thread that watches: it waits for ever when the process that has the store is stopped."""
        before = resumed = time.monotonic()
        while not self._left.wait(self._limits.interval):
            now = time.monotonic()
            if now - before > 3 * self._limits.interval:  # this process was suspended
                resumed = now
            before = now
            if now - max(self._round, resumed) > self._limits.silence + self._limits.interval:
                self._end(
                    f"{self._name_rank0()} has not answered for {self._limits.silence:g} s (training.silence_seconds); "
                    f"{self._recall()}"
                )
                return

    def _forgive_suspension(self, now: float) -> None:
        """If this process did not run, or waited for the store, for long: give the others time to be heard again."""
        if now - self._round > 3 * self._limits.interval:
            self._began = now
            self._seen = {rank: one._replace(heard=now, moved=now) for rank, one in self._seen.items()}

    def _judge(self) -> str | None:
        """What is wrong: on rank 0 with any process; elsewhere only whether rank 0 still is there to judge."""
        everyone = range(self._world_size)
        self._read([0, self._rank] if self._rank else everyone)
        now = time.monotonic()
        self._forgive_suspension(now)
        if self._rank:
            return find_gone(self._seen, [0], self._limits, now, self._began)
        gone = find_gone(self._seen, everyone, self._limits, now, self._began)
        return gone or find_stuck(self._seen, self._limits, now)

    def _write(self) -> None:
        self._beats += 1
        self._store.set(f"rank/{self._rank}", json.dumps([*self._place, self._beats]))

    def _read_verdict(self) -> str | None:
        return self._store.get(_VERDICT).decode() if self._store.check([_VERDICT]) else None

    def _read(self, ranks: Iterable[int]) -> None:
        """Read the reports of these processes; on rank 0, those that have not reported yet are left out."""
        known = [rank for rank in ranks if self._rank or rank in self._seen or self._store.check([f"rank/{rank}"])]
        reports = self._store.multi_get([f"rank/{rank}" for rank in known]) if known else []
        now = time.monotonic()
        for rank, report in zip(known, reports, strict=True):
            *values, beats = json.loads(report)
            place, before = Place(*values), self._seen.get(rank)
            self._seen[rank] = Seen(
                place,
                beats,
                now if before is None or before.beats != beats else before.heard,
                now if before is None or before.place.steps != place.steps else before.moved,
            )

    def _share_overview(self) -> None:
        """Let the others know where all processes are, for the case that rank 0 is the one that dies."""
        if self._rank == 0:
            self._store.set(_OVERVIEW, describe(self._seen))
        elif self._store.check([_OVERVIEW]):
            self._overview = self._store.get(_OVERVIEW).decode()

    def _name_rank0(self) -> str:
        return name_ranks([0], self._seen)

    def _recall(self) -> str:
        """Where this process is, and where all were when rank 0 last said so."""
        own = f"rank {self._rank}: {self._place.describe()}"
        return f"{own}; before, {self._overview}" if self._overview else own

    def _end(self, verdict: str) -> None:
        """Pass the verdict on, write where this process is, and end it."""
        with self._lock:
            if self._verdict is not None or self._left.is_set():
                return
            self._verdict = verdict
        _attempt(lambda: self._store.set(_VERDICT, verdict), _STORE_PATIENCE)
        if self._rank == 0:
            self._speak(verdict)
        _attempt(lambda: self._log.write_last_words(verdict), _PATIENCE)
        if self._rank == 0:
            _attempt(self.before_end, _PATIENCE)
            _attempt(self.on_end, _PATIENCE)
        time.sleep(2 * self._limits.interval)  # the others read the verdict, and rank 0 speaks before they try
        if self._rank != 0:
            self._speak(verdict)
        os._exit(STATUS)

    def _speak(self, verdict: str) -> None:
        """Print the verdict, unless another process does."""
        if self._folder is not None:
            first = _attempt(lambda: self._write_verdict(verdict), _PATIENCE)
        else:
            first = _attempt(lambda: bool(self._store.add(_SPEAKER, 1) == 1), _STORE_PATIENCE)
        if first or (first is None and self._rank <= 1):
            logs = "" if self._folder is None else f". Stacks of all ranks are in {self._folder}"
            with suppress(OSError):
                sys.stderr.flush()
                os.write(2, f"dst: error: {verdict}{logs}\n".encode())

    def _write_verdict(self, verdict: str) -> bool:
        """Write the file of the verdict. Returns whether this process is the first to do so."""
        assert self._folder is not None
        try:
            with (self._folder / VERDICT_NAME).open("x", encoding="utf-8") as file:
                file.write(f"{verdict}\n")
        except FileExistsError:
            return False
        return True


def prepare_folder(folder: Path) -> None:
    """Make the folder of logs, or remove the verdict of an earlier run from it. Only on rank 0.

    Raises:
        StorageError: It cannot be made.
    """
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
        (folder / VERDICT_NAME).unlink(missing_ok=True)


def _attempt(action: Callable[[], T], seconds: float) -> T | None:
    """Run something that may fail or hang. Returns its result; None if it did not come in time."""
    results: list[T] = []

    def run() -> None:
        with suppress(Exception):
            results.append(action())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def _open_store(host: str, port: int, prefix: str) -> Any:
    """A client of the store for the threads of a watchdog alone: calls on one client wait for each other."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    client = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
    return PrefixStore(f"{prefix}watchdog", client)
