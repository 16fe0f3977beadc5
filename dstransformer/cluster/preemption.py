"""Stop signals. On a signal, the run finishes its update and writes a checkpoint to resume from."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """A context manager that records SIGTERM (preemption, launcher), SIGUSR1 (SLURM's warning), Ctrl-C and SIGHUP.

    SIGHUP, as of a closed connection, stays ignored under nohup. A second Ctrl-C ends the process at once.

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
        if number == signal.SIGINT and self._interrupted:
            signal.default_int_handler(number, frame)
        self._interrupted |= number == signal.SIGINT
        first, self.received = self.received is None, signal.Signals(number).name
        if first and self._announce:
            again = "; Ctrl-C again stops it at once" if self._interrupted else ""
            condition = " if all its processes still run" if self._processes > 1 else ""
            text = (
                f"\ndst: {self.received}: the run stops after this update and writes a checkpoint{condition}{again}\n"
            )
            with contextlib.suppress(OSError):  # standard error is closed
                os.write(2, text.encode())  # not print, which the signal may have interrupted
