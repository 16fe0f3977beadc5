"""What to do when a disk fails: try again after a while, or hold the data until the disk accepts it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dstransformer.errors import StorageError

T = TypeVar("T")

#: Maximum tries for something that must be written.
MAX_TRIES = 5


@dataclass(frozen=True)
class RetryPolicy:
    """Tries to write or read something several times, if the program cannot continue without it.

    Attributes:
        seconds: Seconds between two tries.
        wait: Waits for a number of seconds. An error of it, such as that the program is to stop, ends the tries.
        on_failure: Called with the name of what failed, the error, and the number of tries left.
        max_tries: The number of tries.
    """

    seconds: float
    wait: Callable[[float], None]
    on_failure: Callable[[str, StorageError, int], None]
    max_tries: int = MAX_TRIES

    def run(self, what: str, attempt: Callable[[], T]) -> T:
        """Call a function until it succeeds; returns what it returns.

        Args:
            what: What it writes or reads, for messages: ``the last checkpoint``.
            attempt: The function; raises StorageError if the disk refuses.

        Raises:
            StorageError: ``attempt`` failed ``max_tries`` times.
        """
        for left in reversed(range(self.max_tries)):
            try:
                return attempt()
            except StorageError as error:
                self.on_failure(what, error, left)
                if not left:
                    failure = StorageError(f"{what} could not be saved, in {self.max_tries} tries: {error}")
                    failure.shared = error.shared
                    raise failure from error
                self.wait(self.seconds)
        raise AssertionError  # the last try returns or raises


class Backlog(Generic[T]):
    """Items to write in order. Those that the disk refuses stay in memory, and are written ahead of the next one.

    Several threads may use it.

    Args:
        write: Writes the items given to it, all or none; raises OSError if the disk refuses. It is called without items
            by :meth:`flush` on an empty backlog.
        on_refusal: Called with the error when a disk that accepted the last write refuses one.
        on_recovery: Called when a disk that refused the last write accepts one.
    """

    def __init__(
        self,
        write: Callable[[Sequence[T]], None],
        on_refusal: Callable[[OSError], None],
        on_recovery: Callable[[], None],
    ) -> None:
        self._write = write
        self._on_refusal = on_refusal
        self._on_recovery = on_recovery
        self._waiting: list[T] = []
        self._refused = False
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """The number of items that wait for the disk."""
        return len(self._waiting)

    def waiting(self) -> tuple[T, ...]:
        """The items that wait for the disk, oldest first."""
        with self._lock:
            return tuple(self._waiting)

    def add(self, item: T) -> OSError | None:
        """Write an item, after those that wait. Returns what prevents it, if anything."""
        with self._lock:
            self._waiting.append(item)
            return self.flush()

    def flush(self) -> OSError | None:
        """Write the items that wait. Returns what prevents it, if anything."""
        with self._lock:
            try:
                self._write(self._waiting)
            except OSError as error:
                if not self._refused:
                    self._on_refusal(error)
                self._refused = True
                return error
            self._waiting.clear()
            if self._refused:
                self._on_recovery()
            self._refused = False
            return None
