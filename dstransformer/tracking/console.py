"""Progress on the terminal: a live bar, or plain lines if standard error is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dstransformer.errors import counted
from dstransformer.io.progress import is_quiet
from dstransformer.tracking.events import (
    BundleSaved,
    CheckpointSaved,
    CostTotal,
    EvaluationDone,
    EvaluationProgress,
    Event,
    Message,
    NonfiniteUpdate,
    Rollback,
    RunEnd,
    RunStart,
    Tracker,
    TrainingProgress,
    UpdateDone,
)

#: Seconds after which the first line comes without a terminal, if ``training.log_every`` updates take longer.
_FIRST_LINE = 10.0

#: Columns of the bar.
_BAR_WIDTH = 12

#: Parts of the line that a terminal without room for them goes without, the first of them first.
_LEAST_FIRST = ("mfu", "memory_gib", "elapsed", "bar", "lr", "epoch", "score", "tokens_per_second", "left")


class PipeSafeConsole(Console):
    """A console that goes quiet when its pipe is closed, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Called by rich after writing to a closed pipe."""
        self.quiet = True


class ConsoleProgress(Tracker):
    """Shows update, epoch, loss, learning rate, speed, last BLEU and time; on standard error by default.

    On a terminal the line moves with every update, its loss with every record; elsewhere each record is a line, after
    an early one. A narrow terminal omits all but update and loss, ``-q`` all but updates that diverge, and rollbacks.
    """

    name = "the progress display"

    def __init__(self, max_updates: int, console: Console | None = None) -> None:
        self._max_updates = max_updates
        # FORCE_COLOR gives a pipe colour, but no line that is redrawn.
        redraws = None if sys.stderr is not None and sys.stderr.isatty() else False
        self._console = console or PipeSafeConsole(stderr=True, force_interactive=redraws)
        self._live: Live | None = None
        self._step = 0
        self._record: dict[str, str] = {}  # the last one
        self._parts: dict[str, str] = {}
        self._score = ""
        self._evaluating = ""  # the line meanwhile
        self._evaluating_since = self._evaluating_shown = 0.0
        self._overall_speed: float | None = None
        self._first_step = 0
        self._start_time = time.monotonic()
        self._tokens = 0

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``."""
        if isinstance(event, EvaluationProgress):
            self._show_evaluation(event)
        elif not is_quiet() or isinstance(event, NonfiniteUpdate | Rollback):
            self._evaluating = ""
            self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case RunStart():
                self._start(event)
            case UpdateDone(step, tokens):
                self._count(step, tokens)
            case TrainingProgress(step, metrics):
                self._record = _format_train_metrics(metrics)
                self._show_progress(step, self._record)
            case EvaluationDone():
                self._print_evaluation(event)
            case CostTotal(_, totals):
                self._overall_speed = totals.get("overall_tokens_per_second")
            case NonfiniteUpdate():
                self._print_nonfinite_update(event)
            case Rollback():
                self._print_rollback(event)
            case CheckpointSaved(path, _, step, score):
                scored = "" if score is None else f"  score {score:.2f}"
                self.print(f"update {step}  checkpoint {path}{scored}")
            case BundleSaved(bundle, step):  # whose scores are the result of the command
                self.print(f"update {step}  bundle {bundle}")
            case Message(line):
                self.print(line)
            case RunEnd():
                self._end(event)

    def print(self, line: str, style: str = "") -> None:
        """Print a line without interpreting markup. Thread-safe."""
        self._console.print(Text(line, style), soft_wrap=True)

    def _start(self, run: RunStart) -> None:
        """Start the clock, and draw the line from now on if there is a terminal."""
        self._first_step = self._step = run.resume_step or 0
        self._start_time = time.monotonic()
        if self._first_step:
            self.print(f"resumed at update {self._first_step}")
        if self._console.is_interactive:
            self._live = Live(console=self._console, transient=True, get_renderable=self._draw)
            self._live.start()

    def _count(self, step: int, tokens: int) -> None:
        """Move the line that is drawn, or print the first one if no record has come in ``_FIRST_LINE`` seconds."""
        self._tokens += tokens
        if self._live is not None or (self._step == self._first_step and self._elapsed() >= _FIRST_LINE):
            speed = {"tokens_per_second": f"{self._tokens / self._elapsed():,.0f} tokens/s"}
            self._show_progress(step, self._record or speed)

    def _show_progress(self, step: int, record: dict[str, str]) -> None:
        """Change the line that is drawn, or print one."""
        parts = dict(record)
        if self._score:
            parts["score"] = self._score
        parts["elapsed"] = f"elapsed {_format_time(self._elapsed())}"
        if (done := step - self._first_step) > 0:
            left = self._elapsed() / done * max(0, self._max_updates - step)
            parts["left"] = f"ETA {_format_time(left)}"
        self._step, self._parts = step, parts
        if self._live is None:
            progress = f"update {step}/{self._max_updates} ({step / self._max_updates:.1%})"
            self.print("  ".join([progress, *parts.values()]))

    def _show_evaluation(self, progress: EvaluationProgress) -> None:
        """Change the line that is drawn, or print one at most every ``_FIRST_LINE`` seconds."""
        now, done = time.monotonic(), progress.done
        if not done:
            self._evaluating_since = self._evaluating_shown = now
        self._evaluating = f"evaluating {progress.name}  {done:,}/{progress.sentences:,} sentences"
        if done:
            left = (now - self._evaluating_since) / done * (progress.sentences - done)
            self._evaluating += f"  ETA {_format_time(left)}"
        if self._live is None and not is_quiet() and now - self._evaluating_shown >= _FIRST_LINE:
            self._evaluating_shown = now
            self.print(self._evaluating)

    def _draw(self) -> Table | Text:
        """The line, without the parts for which the terminal is too narrow."""
        if self._evaluating:
            return Text(self._evaluating, no_wrap=True, overflow="ellipsis")
        bar = ProgressBar(self._max_updates, self._step, _BAR_WIDTH)
        parts = {"update": f"update {self._step}/{self._max_updates}", "bar": " " * _BAR_WIDTH, **self._parts}
        for name in _LEAST_FIRST:
            if len("  ".join(parts.values())) > self._console.width:
                parts.pop(name, None)
        line = Table.grid(padding=(0, 2))
        line.add_row(*(bar if name == "bar" else Text(part) for name, part in parts.items()))
        return line

    def _print_evaluation(self, done: EvaluationDone) -> None:
        """Print the scores and the first sample."""
        evaluation = done.evaluation
        self._score = f"{evaluation.main.metric} {evaluation.main.number} @{done.step}"
        values = [f"{name} {value:{'.4f' if name == 'loss' else '.2f'}}" for name, value in evaluation.metrics.items()]
        self.print("  ".join([f"update {done.step}  {done.split}", *values]), style="bold")
        for sample in evaluation.samples[:1]:
            self.print(f"  source       {sample.source}")
            self.print(f"  reference    {sample.reference}")
            self.print(f"  translation  {sample.translation}")

    def _print_nonfinite_update(self, update: NonfiniteUpdate) -> None:
        """Print what is not finite, and which pairs were affected."""
        fault = "the gradient is NaN or infinite: skipped" if update.skipped else "the loss is NaN or infinite"
        pairs = ", ".join(map(str, update.pairs[:5])) + (", …" if len(update.pairs) > 5 else "")
        self.print(
            f"update {update.step}  {fault} ({update.consecutive} in a row)  "
            f"{counted(len(update.pairs), 'pair')}: {pairs}"
        )

    def _print_rollback(self, rollback: Rollback) -> None:
        """Print where training continues."""
        (epoch, update), window = rollback.skipped_range[1], rollback.windows[1]
        position = f"epoch {epoch + 1}, {f'window {window + 1}, ' if window else ''}update {update + 1}"
        self.print(
            f"update {rollback.diverged_at}  {rollback.reason}: rollback {rollback.number}, back to the checkpoint of "
            f"update {rollback.step}; training continues with the data from {position}"
        )

    def _end(self, end: RunEnd) -> None:
        """Clear the line and print how the run ended."""
        if self._live is not None:
            self._live.stop()
        ended = "interrupted" if end.status == "killed" else end.status
        speed = self._overall_speed
        overall = "" if speed is None else f", {speed:,.0f} tokens/s with validation and checkpoints"
        self.print(f"training {ended} after {_format_time(self._elapsed())}{overall}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._start_time


def _format_train_metrics(metrics: Mapping[str, float]) -> dict[str, str]:
    parts = {"epoch": f"epoch {metrics['epoch']:.0f}"} if "epoch" in metrics else {}
    formats = {
        "loss": "loss {:.4f}",
        "lr": "lr {:.2e}",
        "tokens_per_second": "{:,.0f} tokens/s in updates",
        "memory_gib": "GPU memory {:.1f} GiB",
        "mfu": "MFU {:.1%}",
    }
    return parts | {name: text.format(metrics[name]) for name, text in formats.items() if name in metrics}


def _format_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
