"""Being asked to stop: the running update is finished, a checkpoint written, and the run can be resumed."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Notes SIGTERM (preemption, the launcher), SIGUSR1 (SLURM's warning) and Ctrl-C while it is entered.

    A second Ctrl-C is as everywhere: it ends the process at once.
    """

    def __init__(self) -> None:
        self.received: str | None = None

    def __enter__(self) -> StopRequest:
        self._previous = {number: signal.signal(number, self._note) for number in STOPS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT.name:
            signal.default_int_handler(number, frame)
        self.received = signal.Signals(number).name
