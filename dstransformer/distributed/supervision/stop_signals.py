"""Stop signals. On a signal, the run finishes its update and writes a checkpoint to resume from, if there is time.

A process whose launcher was killed sends itself a signal. Otherwise it would run on with nothing to end it, and hold
the lock of its run folder.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn

import psutil

from dstransformer.errors import RUN_AGAIN

if TYPE_CHECKING:
    from dstransformer.distributed.world import World

#: Signals within this many seconds of the first are the same request: launchers and shells signal a whole group of
#: processes, and then each of them.
SAME_REQUEST_SECONDS = 2.0

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)

#: Seconds that the main thread has to end the process after a second request, before the other thread ends it.
_GRACE = {signal.SIGINT: 15.0}
_DEFAULT_GRACE = 3.0

#: Seconds between two checks whether the launcher is alive.
LAUNCHER_INTERVAL = 1.0

#: By a variable that only this launcher sets: how many ancestors of a rank belong to it. Those of a rank of
#: ``deepspeed`` are the process that starts the ranks of a node, and the command itself or its ssh connection.
_LAUNCHER_PROCESSES = {"TORCHELASTIC_RUN_ID": 1, "CROSS_RANK": 2}

#: Seconds that ``before_exit`` may take, on a disk that may hang.
_EXIT_SECONDS = 2.0

#: If other processes are gone less than this many seconds before the deadline, they have reached theirs.
_AGREEMENT_SECONDS = 5.0


class StopRequested(BaseException):
    """The run was asked to stop while it computed what it can do again. No handler of errors takes it for one."""


class _Requests:
    """Tells a second request to stop from signals that belong to the first, as one thread sees them.

    Attributes:
        interrupts: The number of SIGINTs.
    """

    def __init__(self) -> None:
        self.interrupts = 0
        self._since: float | None = None  # when the first request came that is not a warning in advance

    def is_second(self, number: int) -> bool:
        """Record a signal. Returns whether it is a second request, see :class:`StopRequest`."""
        now = time.monotonic()
        self.interrupts += number == signal.SIGINT
        later = self._since is not None and now - self._since > SAME_REQUEST_SECONDS
        if self._since is None and number != signal.SIGUSR1:
            self._since = now
        return later or (number == signal.SIGINT and self.interrupts > 1)


class StopRequest:
    """A context manager that records SIGTERM (preemption, launcher), SIGUSR1 (SLURM's warning), Ctrl-C and SIGHUP.

    SIGHUP, as of a closed connection, stays ignored under nohup. A second request ends the process at once: another
    Ctrl-C, or any of these signals when :data:`SAME_REQUEST_SECONDS` have passed. SIGUSR1 is a warning in advance: the
    SIGTERM of the time limit that follows it is not a second request.

    The main thread may wait for other processes and not handle a signal. So a second thread sees the signals too, and
    ends the process with :data:`RUN_AGAIN` when the time for the checkpoint is over.

    Args:
        announce: Print on standard error what happens next, as soon as the first signal arrives.
        processes: Number of processes of the run. A checkpoint needs all of them.
        seconds: Seconds from the first signal in which the checkpoint must be written; 0 sets no limit.
        before_exit: Called with the reason before the process is ended.

    Attributes:
        received: Name of the last signal received, or the cause that this process gave; None if there was none.
        updates_done: Whether the last update and its checkpoint are complete, so that a stop loses only an evaluation.
    """

    def __init__(
        self,
        *,
        announce: bool = False,
        processes: int = 1,
        seconds: float = 0.0,
        before_exit: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.received: str | None = None
        self.updates_done = False
        self._interrupts = False  # whether a request raises in the main thread
        self._before_exit = before_exit
        self._announce = announce
        self._own_cause: tuple[str, str] | None = None
        self._processes = processes
        self._seconds = seconds
        self._handled = _Requests()  # by the main thread
        self._seen = _Requests()  # by the other one
        self._first: float | None = None  # when the first signal came
        self._deadline = math.inf
        self._overdue = f"stopped without a checkpoint: {seconds:g} s were too few (checkpoint.stop_seconds)"

    def __enter__(self) -> StopRequest:
        caught = [
            number for number in STOP_SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ]
        self._arrivals, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, self._handle) for number in caught}
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

    def request(self, cause: str, event: str) -> None:
        """Ask this process to stop, by SIGTERM.

        Args:
            cause: What the run is stopped by: ``received`` from then on.
            event: The same as the start of the line that is printed.
        """
        self._own_cause = cause, event
        os.kill(os.getpid(), signal.SIGTERM)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """In the block, which the main thread runs, a request to this process raises :class:`StopRequested` at once."""
        self._interrupts = True
        try:
            if self.received is not None:
                raise StopRequested
            yield
        finally:
            self._interrupts = False

    def share(self, world: World) -> None:
        """Tell every process why the run stops, and count its seconds from the first signal to any. Collective.

        A process that no signal has reached yet adopts the cause of the lowest rank that has one, and announces it.
        """
        elapsed = 0.0 if self._first is None else time.monotonic() - self._first
        shared = world.gather((elapsed, self.received, self._own_cause))
        if self._seconds:
            self._set_deadline(self._seconds - max(elapsed for elapsed, *_ in shared))
        for rank, (_, received, own_cause) in enumerate(shared):
            if received and self.received is None:
                to_rank = f"{received} to rank {rank}"
                self.received, event = own_cause or (to_rank, to_rank)
                self._announce_stop(event)

    def exit_if_overdue(self) -> None:
        """After other processes are gone: end this one too, if its time for the checkpoint is about to be over."""
        if self._deadline - time.monotonic() < _AGREEMENT_SECONDS:
            self._exit("stopped without a checkpoint, as another process was")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Record a signal in the main thread, and end the process at a second request."""
        if self._handled.is_second(number):
            if number == signal.SIGINT and self._handled.interrupts > 1:
                signal.default_int_handler(number, frame)
            self._exit("stopped at the second signal")
        if self._handled.interrupts:
            number = signal.SIGINT  # which a launcher passes on as SIGTERM
        name, first = signal.Signals(number).name, self.received is None
        self.received, event = self._own_cause or (name, name)
        if first:
            self._announce_stop(event)
        if self._interrupts:
            raise StopRequested

    def _announce_stop(self, event: str) -> None:
        if not self._announce:
            return
        if self.updates_done:
            _print(f"dst: {event}: the run stops; the same command goes on with its last evaluations\n")
            return
        limit = f", within {self._seconds:g} s" if self._seconds else ""
        condition = " if all its processes still run" if self._processes > 1 else ""
        _print(
            f"dst: {event}: the run stops after this update and writes a checkpoint{limit}{condition}; "
            "again stops it at once\n"
        )

    def _watch(self) -> None:
        """See each signal as it arrives, whatever the main thread does, and end the process when its time is over."""
        arrivals = select.poll()
        arrivals.register(self._arrivals, select.POLLIN)
        while True:
            left = self._deadline - time.monotonic()
            if arrivals.poll(None if left == math.inf else max(0.0, 1000 * left)):
                numbers = os.read(self._arrivals, 512)
                if not numbers:
                    return
                for number in numbers:
                    if number in STOP_SIGNALS:
                        self._see(signal.Signals(number))
            elif time.monotonic() >= self._deadline:
                self._exit(self._overdue)

    def _see(self, number: signal.Signals) -> None:
        """Set the deadline that a signal calls for."""
        if self._first is None:
            self._first = time.monotonic()
            self._set_deadline(self._seconds or math.inf)
        if self._seen.is_second(number):
            self._overdue = "stopped at the second signal"
            self._set_deadline(_GRACE.get(number, _DEFAULT_GRACE))

    def _set_deadline(self, seconds: float) -> None:
        """End the process after this many seconds, unless its deadline is earlier."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        with contextlib.suppress(OSError):
            os.write(self._wakeup, b"\0")  # the thread waits for the new deadline

    def _exit(self, reason: str) -> NoReturn:
        """End the process now; the last complete checkpoint counts."""
        done = _thread.allocate_lock()
        done.acquire()

        def prepare() -> None:
            try:
                self._before_exit(reason)
            finally:
                done.release()

        _thread.start_new_thread(prepare, ())  # not threading, whose locks the signal may have interrupted
        done.acquire(timeout=_EXIT_SECONDS)
        if self._announce:
            _print(f"dst: {reason}; the same command resumes from the last complete checkpoint\n")
        os._exit(RUN_AGAIN)


def _print(text: str) -> None:
    """Print to standard error, not with ``print``, which the signal may have interrupted."""
    with contextlib.suppress(OSError):  # standard error is closed
        if os.isatty(2):  # the progress bar is on the line
            text = f"\n{text}"
        os.write(2, text.encode())


@contextlib.contextmanager
def stop_if_launcher_dies(
    environment: Mapping[str, str], stop: StopRequest, interval: float = LAUNCHER_INTERVAL
) -> Iterator[None]:
    """In the block, ask this process to stop once a process of its launcher, of which the environment tells, is gone.

    It is not asked if it has been before, as a second request would end the process.
    """
    launcher = launcher_processes(environment)
    ended = threading.Event()
    if launcher:
        threading.Thread(
            target=watch_launcher, args=(launcher, stop, ended, interval), name="launcher watch", daemon=True
        ).start()
    try:
        yield
    finally:
        ended.set()


def launcher_processes(environment: Mapping[str, str]) -> list[int]:
    """The ids of the launcher's processes above this one, the nearest first.

    Empty without a launcher, and under one that ends its ranks whenever it ends, such as ``srun``.
    """
    count = next((count for name, count in _LAUNCHER_PROCESSES.items() if name in environment), 0)
    return list(takewhile(lambda process: process > 1, _ancestors(count)))


def watch_launcher(launcher: list[int], stop: StopRequest, ended: threading.Event, interval: float) -> None:
    """Ask this process to stop once its nearest ancestors are not ``launcher``; see :func:`stop_if_launcher_dies`."""
    while not ended.wait(interval) and stop.received is None:
        if _ancestors(len(launcher)) != launcher:
            numbers = " or ".join(map(str, launcher))
            stop.request("the end of the launcher", f"the launcher (process {numbers}) was killed")
            return


def _ancestors(count: int) -> list[int]:
    """The ids of the processes above this one, the nearest first; fewer if one of them is gone."""
    found: list[int] = []
    process = os.getpid()
    with contextlib.suppress(psutil.Error):
        while len(found) < count:
            process = psutil.Process(process).ppid()
            found.append(process)
    return found
