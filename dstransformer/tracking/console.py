"""Progress on the terminal: a live bar, or plain lines if standard error is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from dstransformer.errors import counted
from dstransformer.tracking.events import (
    BundleSaved,
    CheckpointSaved,
    CostTotal,
    EvaluationDone,
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

#: Seconds after which the first line of progress comes, if ``training.log_every`` updates take longer.
_FIRST_LINE = 10.0


class PipeSafeConsole(Console):
    """A console that goes quiet when its pipe is closed, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Called by rich after writing to a closed pipe."""
        self.quiet = True


class ConsoleProgress(Tracker):
    """Shows update, epoch, loss, learning rate, speed, last BLEU and time; on standard error by default.

    The first line comes early, without what only a record of the metrics has, such as the loss.
    """

    name = "the progress display"

    def __init__(self, max_updates: int, console: Console | None = None) -> None:
        self._max_updates = max_updates
        self._console = console or PipeSafeConsole(stderr=True)
        self._progress = Progress(
            TextColumn("update"),
            MofNCompleteColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),  # may be cut
            expand=True,
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._score = ""
        self._overall_speed: float | None = None
        self._first_step = 0
        self._start_time = time.monotonic()
        self._tokens: int | None = 0  # until the first line

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``."""
        match event:
            case RunStart():
                self._start(event)
            case UpdateDone(step, tokens):
                self._show_early(step, tokens)
            case TrainingProgress(step, metrics):
                self._show_progress(step, _format_train_metrics(metrics))
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
            case BundleSaved(bundle, step, evaluations):
                for split, evaluation in evaluations.items():
                    self._print_evaluation(EvaluationDone(split, step, evaluation))
                self.print(f"update {step}  bundle {bundle}")
            case Message(line):
                self.print(line)
            case RunEnd():
                self._end(event)

    def print(self, line: str) -> None:
        """Print a line without interpreting markup. Thread-safe."""
        self._console.print(Text(line), soft_wrap=True)

    def _start(self, run: RunStart) -> None:
        """Start the clock, and open the bar if there is a terminal."""
        self._first_step = run.resume_step or 0
        self._start_time = time.monotonic()
        if self._first_step:
            self.print(f"resumed at update {self._first_step}")
        if self._console.is_terminal:
            self._task = self._progress.add_task("", total=self._max_updates, completed=self._first_step)
            self._progress.start()

    def _show_early(self, step: int, tokens: int) -> None:
        """Show the progress once after ``_FIRST_LINE`` seconds, if nothing has been shown by then."""
        if self._tokens is None:
            return
        self._tokens += tokens
        if self._elapsed() >= _FIRST_LINE:
            self._show_progress(step, [f"{self._tokens / self._elapsed():,.0f} tokens/s"])

    def _show_progress(self, step: int, parts: list[str]) -> None:
        """Advance the bar, or print a line."""
        self._tokens = None
        if self._score:
            parts.append(self._score)
        parts.append(f"elapsed {_format_time(self._elapsed())}")
        if (left := self._seconds_left(step)) is not None:
            parts.append(f"ETA {_format_time(left)}")
        if self._task is None:
            self.print("  ".join([f"update {step}/{self._max_updates} ({step / self._max_updates:.1%})", *parts]))
        else:
            self._progress.update(self._task, completed=step, description="  ".join(parts))

    def _print_evaluation(self, done: EvaluationDone) -> None:
        """Print the scores and the first sample."""
        evaluation = done.evaluation
        self._score = f"{evaluation.main.metric} {evaluation.main.number} @{done.step}"
        self.print("  ".join([f"update {done.step}  {done.split}", *_format_eval_metrics(evaluation.metrics)]))
        for sample in evaluation.samples[:1]:
            self.print(f"  source       {sample.source}")
            self.print(f"  reference    {sample.reference}")
            self.print(f"  translation  {sample.translation}")

    def _print_nonfinite_update(self, update: NonfiniteUpdate) -> None:
        """Print what is not finite, and which pairs were affected."""
        what = "the gradient is NaN or infinite: skipped" if update.skipped else "the loss is NaN or infinite"
        pairs = ", ".join(map(str, update.pairs[:5])) + (", …" if len(update.pairs) > 5 else "")
        self.print(
            f"update {update.step}  {what} ({update.consecutive} in a row)  "
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
        """Close the bar and print how the run ended."""
        if self._task is not None:
            self._progress.stop()
        ended = "interrupted" if end.status == "killed" else end.status
        speed = self._overall_speed
        overall = "" if speed is None else f", {speed:,.0f} tokens/s with validation and checkpoints"
        self.print(f"training {ended} after {_format_time(self._elapsed())}{overall}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._start_time

    def _seconds_left(self, step: int) -> float | None:
        done = step - self._first_step
        if done <= 0:
            return None
        return self._elapsed() / done * max(0, self._max_updates - step)


def _format_train_metrics(metrics: Mapping[str, float]) -> list[str]:
    parts = [f"epoch {metrics['epoch'] + 1:.0f}"] if "epoch" in metrics else []  # counted from 0, shown from 1
    formats = {
        "loss": "loss {:.4f}",
        "lr": "lr {:.2e}",
        "tokens_per_second": "{:,.0f} tokens/s in updates",
        "memory_gib": "GPU memory {:.1f} GiB",
        "mfu": "MFU {:.1%}",
    }
    return parts + [text.format(metrics[name]) for name, text in formats.items() if name in metrics]


def _format_eval_metrics(metrics: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4f}" if name == "loss" else f"{name} {value:.2f}" for name, value in metrics.items()]


def _format_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
