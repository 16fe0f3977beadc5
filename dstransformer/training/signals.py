"""Being asked to stop: the running update is finished, a checkpoint written, and the run can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType

STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Notes SIGTERM (preemption, the launcher), SIGUSR1 (SLURM's warning) and Ctrl-C while it is entered.

    A second Ctrl-C is as everywhere: it ends the process at once.

    Args:
        announced: Say on standard error, at once, what follows from the first of them.
        processes: Of the run; a checkpoint takes all of them.
    """

    def __init__(self, *, announced: bool = False, processes: int = 1) -> None:
        self.received: str | None = None
        self._announced = announced
        self._processes = processes
        self._interrupted = False

    def __enter__(self) -> StopRequest:
        self._previous = {number: signal.signal(number, self._note) for number in STOPS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            signal.default_int_handler(number, frame)
        self._interrupted |= number == signal.SIGINT
        first, self.received = self.received is None, signal.Signals(number).name
        if first and self._announced:
            again = "; Ctrl-C again stops it at once" if self._interrupted else ""
            all_run = " if all its processes still run" if self._processes > 1 else ""
            text = f"\ndst: {self.received}: the run stops after this update and writes a checkpoint{all_run}{again}\n"
            with contextlib.suppress(OSError):  # nobody reads any more
                os.write(2, text.encode())  # a print may have been interrupted in its middle
