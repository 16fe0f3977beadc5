"""Progress on stderr: live bars on a terminal, now and then a plain line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

_LINE_INTERVAL = 10.0


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, rows: int) -> None:
        """Count ``rows`` more as done."""


class Progress(Protocol):
    """Where a build reports what it does."""

    def task(self, name: str, total: int | None = None) -> AbstractContextManager[Task]:
        """Show ``name`` as under way until the block ends; ``total`` is in rows, where known."""

    def note(self, text: str) -> None:
        """Show one line."""


class _LineTask:
    def __init__(self, show: Callable[[int], None]) -> None:
        self.done = 0
        self._show = show
        self._shown_at = time.monotonic()

    def advance(self, rows: int) -> None:
        self.done += rows
        if time.monotonic() - self._shown_at >= _LINE_INTERVAL:
            self._show(self.done)
            self._shown_at = time.monotonic()


class LineProgress:
    """Plain lines: when a task begins, every ten seconds, and when it is done."""

    @contextmanager
    def task(self, name: str, total: int | None = None) -> Iterator[Task]:
        """See `Progress.task`."""
        of_total = f" of {total:,}" if total else ""
        task = _LineTask(lambda done: self.note(f"{name}: {done:,}{of_total}"))
        begin = time.monotonic()
        self.note(f"{name} ...")
        yield task
        rows = f"{task.done:,} rows, " if task.done else ""
        self.note(f"{name}: done, {rows}{time.monotonic() - begin:.1f} s")

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        with suppress(OSError):  # nobody listens, which is no reason to stop
            print(text, file=sys.stderr, flush=True)


class _BarTask:
    def __init__(self, show: Callable[[int], None]) -> None:
        self.done = 0
        self._show = show

    def advance(self, rows: int) -> None:
        self.done += rows
        self._show(self.done)


class TerminalProgress:
    """A rich progress bar a task."""

    @contextmanager
    def task(self, name: str, total: int | None = None) -> Iterator[Task]:
        """See `Progress.task`."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=Console(stderr=True)) as bars:
            number = bars.add_task(name, total=total)
            task = _BarTask(lambda done: bars.update(number, completed=done))
            yield task
            bars.update(number, total=task.done or 1, completed=task.done or 1)

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        from rich.console import Console

        Console(stderr=True, highlight=False, markup=False).print(text)


def build_progress() -> Progress:
    """Bars where stderr is a terminal, else lines."""
    return TerminalProgress() if sys.stderr.isatty() else LineProgress()
