"""Stop signals. On a signal, the run finishes its update and writes a checkpoint to resume from, if there is time.

A run whose launcher was killed gets a signal too: nobody would end its processes, and nothing else could train in its
folder.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn

import psutil

from dstransformer.errors import RUN_AGAIN

if TYPE_CHECKING:
    from dstransformer.distributed.world import World

logger = logging.getLogger(__name__)

#: Signals within this many seconds of the first are the same request: launchers and shells signal a whole group of
#: processes, and then each of them.
SAME_REQUEST_SECONDS = 2.0

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)

#: Seconds that the main thread has to end the process after a second request, before the other thread ends it.
_GRACE = {signal.SIGINT: 15.0}
_DEFAULT_GRACE = 3.0

#: Seconds between two looks at the launcher.
LAUNCHER_INTERVAL = 1.0

#: By a variable that only this launcher sets: how many processes above a rank belong to it. Above a rank of
#: ``deepspeed`` are the process that starts the ranks of a node and the one that was called, or its ssh connection.
_GENERATIONS = {"TORCHELASTIC_RUN_ID": 1, "CROSS_RANK": 2}

#: Seconds that ``before_leaving`` may take, on a disk that may hang.
_LEAVE_SECONDS = 2.0

#: If other processes are gone less than this many seconds before the deadline, they have reached theirs.
_AGREEMENT_SECONDS = 5.0


class StopRequest:
    """A context manager that records SIGTERM (preemption, launcher), SIGUSR1 (SLURM's warning), Ctrl-C and SIGHUP.

    SIGHUP, as of a closed connection, stays ignored under nohup. A second request ends the process at once: another
    Ctrl-C, or any of these signals when :data:`SAME_REQUEST_SECONDS` have passed. SIGUSR1 is a warning in advance: the
    SIGTERM of the time limit that follows it is not a second request.

    A thread watches over both, as the main thread may wait for other processes and not handle a signal. It ends the
    process with :data:`RUN_AGAIN` when the time for the checkpoint is over.

    Args:
        announce: Print on standard error what happens next, as soon as the first signal arrives.
        processes: Number of processes of the run. A checkpoint needs all of them.
        seconds: Seconds from the first signal in which the checkpoint must be written; 0 sets no limit.
        before_leaving: Called before the process is ended.

    Attributes:
        received: Name of the first signal received; None if there was none.
    """

    def __init__(
        self,
        *,
        announce: bool = False,
        processes: int = 1,
        seconds: float = 0.0,
        before_leaving: Callable[[], None] = lambda: None,
    ) -> None:
        self.received: str | None = None
        self._before_leaving = before_leaving
        self._announce = announce
        self._processes = processes
        self._seconds = seconds
        self._interrupted = False
        self._since: float | None = None  # when the first request came that is not a warning in advance
        self._first: float | None = None  # when the first signal came
        self._deadline = math.inf

    def __enter__(self) -> StopRequest:
        heeded = [
            number for number in STOP_SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ]
        self._arrivals, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, self._handle) for number in heeded}
        self._watcher = threading.Thread(target=self._watch, name="stop signals", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._wakeup)  # ends the thread
        self._watcher.join()
        os.close(self._arrivals)

    def share_deadline(self, world: World) -> None:
        """Count the seconds on every process from the first signal that any of them received. Collective."""
        if not self._seconds:
            return
        elapsed = max(world.gather(0.0 if self._first is None else time.monotonic() - self._first))
        self._set_deadline(self._seconds - elapsed)

    def leave_if_overdue(self) -> None:
        """After other processes are gone: end this one too, if its time for the checkpoint is about to be over."""
        if self._deadline - time.monotonic() < _AGREEMENT_SECONDS:
            self._leave("stopped without a checkpoint, as another process was")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, now = self.received is None, time.monotonic()
        if number == signal.SIGINT and self._interrupted:
            signal.default_int_handler(number, frame)
        if self._since is not None and now - self._since > SAME_REQUEST_SECONDS:
            self._leave("stopped at the second signal")
        if self._since is None and number != signal.SIGUSR1:
            self._since = now
        self._interrupted |= number == signal.SIGINT
        self.received = signal.Signals(number).name
        if first and self._announce:
            again = "; again stops it at once"
            condition = " if all its processes still run" if self._processes > 1 else ""
            limit = f", within {self._seconds:g} s" if self._seconds else ""
            _print(
                f"\ndst: {self.received}: the run stops after this update and writes a checkpoint{limit}{condition}"
                f"{again}\n"
            )

    def _watch(self) -> None:
        """See each signal as it arrives, whatever the main thread does, and end the process when its time is over."""
        since, interrupted, second = None, False, False
        arrivals = select.poll()
        arrivals.register(self._arrivals, select.POLLIN)
        while True:
            left = self._deadline - time.monotonic()
            ready = arrivals.poll(None if left == math.inf else max(0.0, 1000 * left))
            if not ready and time.monotonic() >= self._deadline:
                few = f"stopped without a checkpoint: {self._seconds:g} s were too few (checkpoint.stop_seconds)"
                self._leave("stopped at the second signal" if second else few)
            numbers = os.read(self._arrivals, 512) if ready else b"\0"
            if not numbers:
                return
            for number in numbers:
                if number not in STOP_SIGNALS:
                    continue
                now = time.monotonic()
                if self._first is None:
                    self._first = now
                    self._set_deadline(self._seconds or math.inf)
                again = number == signal.SIGINT and interrupted
                if again or (since is not None and now - since > SAME_REQUEST_SECONDS):
                    second = True
                    self._set_deadline(_GRACE.get(signal.Signals(number), _DEFAULT_GRACE))
                if since is None and number != signal.SIGUSR1:
                    since = now
                interrupted |= number == signal.SIGINT

    def _set_deadline(self, seconds: float) -> None:
        """End the process after this many seconds, unless its deadline is earlier."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        with contextlib.suppress(OSError):
            os.write(self._wakeup, b"\0")  # the thread waits for the new deadline

    def _leave(self, reason: str) -> NoReturn:
        """End the process now; the last complete checkpoint counts."""
        said = _thread.allocate_lock()
        said.acquire()

        def say() -> None:
            try:
                self._before_leaving()
            finally:
                said.release()

        _thread.start_new_thread(say, ())  # not threading, whose locks the signal may have interrupted
        said.acquire(timeout=_LEAVE_SECONDS)
        if self._announce:
            _print(f"\ndst: {reason}; the same command resumes from the last complete checkpoint\n")
        os._exit(RUN_AGAIN)


def _print(text: str) -> None:
    """Print to standard error, not with ``print``, which the signal may have interrupted."""
    with contextlib.suppress(OSError):  # standard error is closed
        os.write(2, text.encode())


def launchers(environment: Mapping[str, str]) -> list[int]:
    """The processes of the launcher above this one, the nearest first; none without a launcher that dies alone."""
    generations = next((count for name, count in _GENERATIONS.items() if name in environment), 0)
    found: list[int] = []
    process = psutil.Process()
    for _ in range(generations):
        parent = process.parent()
        if parent is None or parent.pid == 1:
            break
        found.append(parent.pid)
        process = parent
    return found


@contextlib.contextmanager
def stop_if_launcher_dies(
    environment: Mapping[str, str], is_stopping: Callable[[], bool], interval: float = LAUNCHER_INTERVAL
) -> Iterator[None]:
    """In the block, send this process SIGTERM once a process of its launcher is gone. The run then stops as asked to.

    Args:
        environment: The environment variables, which say what the launcher was.
        is_stopping: Whether the run has been asked to stop. Then nothing is sent: another request would be urgent.
        interval: Seconds between two looks.
    """
    above = launchers(environment)
    ended = threading.Event()
    if above:
        threading.Thread(
            target=watch_launcher, args=(above, is_stopping, ended, interval), name="launcher watch", daemon=True
        ).start()
    try:
        yield
    finally:
        ended.set()


def watch_launcher(above: list[int], is_stopping: Callable[[], bool], ended: threading.Event, interval: float) -> None:
    """Send this process SIGTERM once it has other processes above it than these; see :func:`stop_if_launcher_dies`."""
    while not ended.wait(interval) and not is_stopping():
        if _chain(len(above)) != above:
            logger.warning("the launcher (process %s) was killed: the run stops", " or ".join(map(str, above)))
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _chain(length: int) -> list[int]:
    """The processes above this one, the nearest first; fewer if one is gone. An orphan has another parent."""
    found = [os.getppid()]
    try:
        while len(found) < length:
            found.append(psutil.Process(found[-1]).ppid())
    except psutil.Error:
        pass
    return found
