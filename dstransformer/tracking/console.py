"""Progress on the terminal: a live bar, or plain lines if standard error is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from dstransformer.errors import counted
from dstransformer.evaluation import Evaluation
from dstransformer.tracking.tracker import BadUpdate, Rollback, RunStart, RunStatus, Tracker


class PipeSafeConsole(Console):
    """A console that goes quiet when its pipe is closed, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Called by rich after writing to a closed pipe."""
        self.quiet = True


class ConsoleProgress(Tracker):
    """Shows update, epoch, loss, learning rate, speed, last BLEU and time; on standard error by default."""

    name = "the progress display"

    def __init__(self, max_updates: int, console: Console | None = None) -> None:
        self._max_updates = max_updates
        self._console = console or PipeSafeConsole(stderr=True)
        self._progress = Progress(
            TextColumn("update"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._score = ""
        self._first_step = 0
        self._start_time = time.monotonic()

    def start(self, run: RunStart) -> None:
        """Start the clock, and open the bar if there is a terminal."""
        self._first_step = run.resume_step or 0
        self._start_time = time.monotonic()
        if self._first_step:
            self.say(f"resumed at update {self._first_step}")
        if self._console.is_terminal:
            self._task = self._progress.add_task("", total=self._max_updates, completed=self._first_step)
            self._progress.start()

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Advance the bar, or print a line."""
        parts = _format_train_metrics(metrics)
        if self._score:
            parts.append(self._score)
        parts.append(f"elapsed {_format_time(self._elapsed())}")
        if (left := self._seconds_left(step)) is not None:
            parts.append(f"ETA {_format_time(left)}")
        if self._task is None:
            self.say("  ".join([f"update {step}/{self._max_updates} ({step / self._max_updates:.1%})", *parts]))
        else:
            self._progress.update(self._task, completed=step, description="  ".join(parts))

    def log_eval(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Print the scores and the first sample."""
        self._score = f"{evaluation.main.metric} {evaluation.main.value:.2f} @{step}"
        self.say("  ".join([f"update {step}  {split}", *_format_eval_metrics(evaluation.metrics)]))
        for sample in evaluation.samples[:1]:
            self.say(f"  source       {sample.source}")
            self.say(f"  reference    {sample.reference}")
            self.say(f"  translation  {sample.translation}")

    def log_bad_update(self, update: BadUpdate) -> None:
        """Print what happened, and in which sentences."""
        what = "the gradient is NaN or infinite: skipped" if update.skipped else "the loss is NaN or infinite"
        shown = ", ".join(map(str, update.pairs[:5])) + (", …" if len(update.pairs) > 5 else "")
        self.say(
            f"update {update.step}  {what} ({update.in_a_row} in a row)  {counted(len(update.pairs), 'pair')}: {shown}"
        )

    def log_rollback(self, rollback: Rollback) -> None:
        """Print where training went on."""
        (epoch, update), window = rollback.passed_over[1], rollback.windows[1]
        place = f"epoch {epoch + 1}, {f'window {window + 1}, ' if window else ''}update {update + 1}"
        self.say(
            f"update {rollback.diverged_at}  {rollback.reason}: back to the checkpoint of update {rollback.step}, "
            f"and on with the data from {place} (time {rollback.number})"
        )

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """Print the path of the checkpoint and its score."""
        del sha256
        scored = "" if score is None else f"  score {score:.2f}"
        self.say(f"update {step}  checkpoint {path}{scored}")

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Print the scores and the path of the bundle."""
        for split, evaluation in evaluations.items():
            self.log_eval(split, step, evaluation)
        self.say(f"update {step}  bundle {bundle}")

    def finish(self, status: RunStatus) -> None:
        """Close the bar and print how the run ended."""
        if self._task is not None:
            self._progress.stop()
        ended = "interrupted" if status == "killed" else status
        self.say(f"training {ended} after {_format_time(self._elapsed())}")

    def say(self, line: str) -> None:
        """Print a line without interpreting markup. Thread-safe."""
        self._console.print(Text(line), soft_wrap=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._start_time

    def _seconds_left(self, step: int) -> float | None:
        done = step - self._first_step
        if done <= 0:
            return None
        return self._elapsed() / done * max(0, self._max_updates - step)


def _format_train_metrics(metrics: Mapping[str, float]) -> list[str]:
    parts = [f"epoch {metrics['epoch'] + 1:.0f}"] if "epoch" in metrics else []  # counted from 0, shown from 1
    formats = {"loss": "loss {:.4f}", "lr": "lr {:.2e}", "tokens_per_second": "{:,.0f} tokens/s"}
    return parts + [text.format(metrics[name]) for name, text in formats.items() if name in metrics]


def _format_eval_metrics(metrics: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4f}" if name == "loss" else f"{name} {value:.2f}" for name, value in metrics.items()]


def _format_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
