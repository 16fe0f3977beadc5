"""How far a long command is, on standard error: a bar at a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds between two lines.
INTERVAL = 10.0


@contextmanager
def reporting(unit: str, total: int | None = None, *, bar: bool = True) -> Iterator[Callable[[int], None]]:
    """A function that takes how many more are done.

    Args:
        unit: What is counted, in the plural.
        total: How many there are, where that is known.
        bar: Whether a bar may be drawn where there is a terminal; not where the outcome appears on it.
    """
    if bar and sys.stderr.isatty():
        with _drawing(unit, total) as advance:
            yield advance
    else:
        yield _Lines(unit, total)


@contextmanager
def _drawing(unit: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (MofNCompleteColumn(), TextColumn(unit), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(unit, total=total)
        yield lambda count: progress.advance(task, count)


class _Lines:
    """Prints a line where the last one is :data:`INTERVAL` seconds ago."""

    def __init__(self, unit: str, total: int | None) -> None:
        self._unit, self._of = unit, "" if total is None else f" of {total:,}"
        self._done = 0
        self._began = self._said = time.monotonic()

    def __call__(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._said >= INTERVAL:
            self._said = now
            rate = self._done / (now - self._began)
            print(f"dst: {self._done:,}{self._of} {self._unit}, {rate:,.1f} a second", file=sys.stderr, flush=True)
