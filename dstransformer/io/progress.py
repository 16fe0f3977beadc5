"""Progress of a long command on standard error: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

#: Seconds between two lines.
INTERVAL = 10.0

_WARNING = "warning: "

#: To call with the number of units just done.
Advance = Callable[[int], None]


@contextmanager
def reporting(unit: str, total: int | None = None, *, bar: bool = True) -> Iterator[Advance]:
    """Show the progress of a command that counts one kind of unit. A command that ends soon prints nothing.

    Args:
        unit: What is counted, in the plural.
        total: How many there are, if known.
        bar: Whether to draw a bar on a terminal. Choose False if the output of the command appears there too.
    """
    if bar and sys.stderr.isatty():
        with _drawing(unit, total, transient=True) as counter:
            yield counter
    else:
        of_total = "" if total is None else f" of {total:,}"
        yield _Counter(lambda done, rate: _print(f"dst: {done:,}{of_total} {unit}, {rate:,.1f} a second"), INTERVAL)


class Progress(Protocol):
    """Shows the progress of a command that does several tasks."""

    def task(self, name: str, total: int | None = None, unit: str = "rows") -> AbstractContextManager[Advance]:
        """Show a task until the block ends; ``total`` is in units, if known."""

    def note(self, text: str) -> None:
        """Show one line; ``warning: …`` is also kept."""

    @property
    def warnings(self) -> Sequence[str]:
        """The warnings so far, without ``warning: ``."""


def build_progress() -> LineProgress | BarProgress:
    """Return bars if stderr is a terminal, else lines."""
    return BarProgress() if sys.stderr.isatty() else LineProgress()


class _Notes(ABC):
    """Shows lines, and remembers which of them were warnings."""

    def __init__(self) -> None:
        self._warnings: list[str] = []

    def note(self, text: str) -> None:
        """See :meth:`Progress.note`."""
        if text.startswith(_WARNING):
            self._warnings.append(text.removeprefix(_WARNING))
        self._show(text)

    @property
    def warnings(self) -> Sequence[str]:
        """See :attr:`Progress.warnings`."""
        return tuple(self._warnings)

    def repeat_warnings(self) -> None:
        """Show the warnings once more, below a result: those before many lines of progress are out of sight."""
        for text in self._warnings:
            self._show(f"{_WARNING}{text}")

    @abstractmethod
    def _show(self, text: str) -> None:
        """Show one line."""


class LineProgress(_Notes):
    """Plain lines: when a task begins, every :data:`INTERVAL` seconds, and when it is done."""

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "rows") -> Iterator[Advance]:
        """See :meth:`Progress.task`."""
        of_total = f" of {total:,}" if total else ""
        began = time.monotonic()
        self.note(f"{name} ...")
        counter = _Counter(lambda done, _: self.note(f"{name}: {done:,}{of_total} {unit}"), INTERVAL)
        yield counter
        done = f"{counter.done:,} {unit}, " if counter.done else ""
        self.note(f"{name}: done, {done}{time.monotonic() - began:.1f} s")

    def _show(self, text: str) -> None:
        _print(text)


class BarProgress(_Notes):
    """A bar for each task, which stays on the screen."""

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "rows") -> Iterator[Advance]:  # noqa: ARG002
        """See :meth:`Progress.task`."""
        with _drawing(name, total, transient=False) as counter:
            yield counter

    def _show(self, text: str) -> None:
        from rich.console import Console

        Console(stderr=True, highlight=False, markup=False).print(text)


class _Counter:
    """Counts what is done and, at most every ``interval`` seconds, shows it with the rate per second."""

    def __init__(self, show: Callable[[int, float], None], interval: float) -> None:
        self.done = 0
        self._show, self._interval = show, interval
        self._began = self._shown = time.monotonic()

    def __call__(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self._shown >= self._interval:
            self._shown = now
            self._show(self.done, self.done / max(now - self._began, 1e-9))


@contextmanager
def _drawing(name: str, total: int | None, *, transient: bool) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=transient) as bars:
        number = bars.add_task(name, total=total)
        counter = _Counter(lambda done, _: bars.update(number, completed=done), interval=0.0)
        yield counter
        bars.update(number, total=counter.done or 1, completed=counter.done or 1)


def _print(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # stderr has been closed; the work goes on
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
