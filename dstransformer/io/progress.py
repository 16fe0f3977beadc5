"""Lines for the user on standard error, and the progress of a long command: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds between two lines.
INTERVAL = 10.0

_WARNING = "warning: "

_quiet = False


def be_quiet(quiet: bool) -> None:
    """Hide notes and progress from now on, or show them."""
    global _quiet  # noqa: PLW0603 - the one switch of a process
    _quiet = quiet


def is_quiet() -> bool:
    """Whether notes and progress are hidden."""
    return _quiet


#: To call with the number of units just done.
Advance = Callable[[int], None]


def say(line: str) -> None:
    """Print a line for the user on standard error, also while a bar is drawn there. A closed one is no error."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def note(line: str) -> None:
    """Print a line that ``-q`` hides, as :func:`say` does."""
    if not _quiet:
        say(line)


@contextmanager
def reporting(unit: str, total: int | None = None, *, bar: bool = True) -> Iterator[Advance]:
    """Show the progress of a command that counts one kind of unit. A command that ends soon prints nothing.

    Args:
        unit: What is counted, in the plural.
        total: How many there are, if known.
        bar: Whether to draw a bar on a terminal. Choose False if the output of the command appears there too.
    """
    if bar and sys.stderr.isatty() and not _quiet:
        with _drawing(unit, total, transient=True) as counter:
            yield counter
    else:
        of_total = "" if total is None else f" of {total:,}"
        yield _Counter(lambda done, rate: note(f"dst: {done:,}{of_total} {unit}, {rate:,.1f} a second"))


class Progress:
    """Shows the progress of a command that does several tasks.

    As lines: when a task begins, every :data:`INTERVAL` seconds, and when it is done. As ``bars``, which stay on the
    screen.

    Attributes:
        warnings: The warnings so far, without ``warning: ``.
    """

    def __init__(self, *, bars: bool = False) -> None:
        self.warnings: list[str] = []
        self._bars = bars

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "rows") -> Iterator[Advance]:
        """Show a task until the block ends; ``total`` is in units, if known."""
        if self._bars and not _quiet:
            with _drawing(name, total, transient=False) as counter:
                yield counter
            return
        of_total = f" of {total:,}" if total else ""
        began = time.monotonic()
        self.note(f"{name} ...")
        counter = _Counter(lambda done, _: self.note(f"{name}: {done:,}{of_total} {unit}"))
        yield counter
        done = f"{counter.done:,} {unit}, " if counter.done else ""
        self.note(f"{name}: done, {done}{time.monotonic() - began:.1f} s")

    def note(self, text: str) -> None:
        """Show one line; ``warning: …`` is also kept, and shown in any case."""
        if text.startswith(_WARNING):
            self.warnings.append(text.removeprefix(_WARNING))
            say(text)
        else:
            note(text)

    def repeat_warnings(self) -> None:
        """Show the warnings once more, below a result: those before many lines of progress are out of sight."""
        for text in self.warnings:
            say(f"{_WARNING}{text}")


class _Counter:
    """Counts what is done and, at most every :data:`INTERVAL` seconds, shows it with the rate per second."""

    def __init__(self, show: Callable[[int, float], None]) -> None:
        self.done = 0
        self._show = show
        self._began = self._shown = time.monotonic()

    def __call__(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self._shown >= INTERVAL:
            self._shown = now
            self._show(self.done, self.done / max(now - self._began, 1e-9))


@contextmanager
def _drawing(name: str, total: int | None, *, transient: bool) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    one_line = Column(no_wrap=True)  # a narrow terminal has a shorter bar
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=one_line),
        TimeRemainingColumn(elapsed_when_finished=True, table_column=one_line),
    )
    with Progress(*columns, console=Console(stderr=True), transient=transient) as bars:
        task = bars.add_task(name, total=total)
        yield lambda count: bars.advance(task, count)
        done = bars.tasks[task].completed or 1
        bars.update(task, total=done, completed=done)
