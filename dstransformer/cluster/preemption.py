"""Stop signals. On a signal, the run finishes its update and writes a checkpoint to resume from."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType, TracebackType

#: Signals within so many seconds of the first are the same request: launchers and shells signal a whole group of
#: processes, and then each of them.
SAME_REQUEST_SECONDS = 2.0

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """A context manager that records SIGTERM (preemption, launcher), SIGUSR1 (SLURM's warning), Ctrl-C and SIGHUP.

    SIGHUP, as of a closed connection, stays ignored under nohup. A second request ends the process at once: another
    Ctrl-C, or any of these signals when :data:`SAME_REQUEST_SECONDS` have passed. SIGUSR1 is a warning in advance: the
    SIGTERM of the time limit that follows it is not a second request.

    Args:
        announce: Print on standard error what happens next, as soon as the first signal arrives.
        processes: Number of processes of the run. A checkpoint needs all of them.

    Attributes:
        received: Name of the first signal received; None if there was none.
    """

    def __init__(self, *, announce: bool = False, processes: int = 1) -> None:
        self.received: str | None = None
        self._announce = announce
        self._processes = processes
        self._interrupted = False
        self._since: float | None = None  # when the first request came that is not a warning in advance

    def __enter__(self) -> StopRequest:
        heeded = [
            number for number in STOP_SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ]
        self._previous = {number: signal.signal(number, self._handle) for number in heeded}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, now = self.received is None, time.monotonic()
        if number == signal.SIGINT and self._interrupted:
            signal.default_int_handler(number, frame)
        if self._since is not None and now - self._since > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if self._since is None and number != signal.SIGUSR1:
            self._since = now
        self._interrupted |= number == signal.SIGINT
        self.received = signal.Signals(number).name
        if first and self._announce:
            again = "; again stops it at once"
            condition = " if all its processes still run" if self._processes > 1 else ""
            text = (
                f"\ndst: {self.received}: the run stops after this update and writes a checkpoint{condition}{again}\n"
            )
            with contextlib.suppress(OSError):  # standard error is closed
                os.write(2, text.encode())  # not print, which the signal may have interrupted
