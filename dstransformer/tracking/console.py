"""Progress for whoever watches: a live bar on a terminal, one plain line an interval elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from dstransformer.tracking.tracker import Evaluation, RunStart, RunStatus, Sample, Tracker, bleu_name


class LastingConsole(Console):
    """Falls silent when nobody reads it any more, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Called by rich after a write into a closed pipe."""
        self.quiet = True


class ConsoleProgress(Tracker):
    """Shows update, epoch, loss, learning rate, speed, the last BLEU and the time, on standard error by default."""

    def __init__(self, max_updates: int, console: Console | None = None) -> None:
        self._max_updates = max_updates
        self._console = console or LastingConsole(stderr=True)
        self._progress = Progress(
            TextColumn("update"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._bleu = ""
        self._first_step = 0
        self._began = time.monotonic()

    def start(self, run: RunStart) -> None:
        """Begin to count time, and open the bar where there is a terminal."""
        self._first_step = run.resume_step or 0
        self._began = time.monotonic()
        if self._first_step:
            self.say(f"resumed at update {self._first_step}")
        if self._console.is_terminal:
            self._task = self._progress.add_task("", total=self._max_updates, completed=self._first_step)
            self._progress.start()

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Move the bar, or write a line."""
        figures = _train_figures(metrics)
        if self._bleu:
            figures.append(self._bleu)
        figures.append(f"elapsed {_clock(self._elapsed())}")
        if (left := self._seconds_left(step)) is not None:
            figures.append(f"ETA {_clock(left)}")
        if self._task is None:
            self.say("  ".join([f"update {step}/{self._max_updates} ({step / self._max_updates:.1%})", *figures]))
        else:
            self._progress.update(self._task, completed=step, description="  ".join(figures))

    def log_eval(
        self,
        split: str,
        step: int,
        metrics: Mapping[str, float],
        *,
        signatures: Mapping[str, str] | None = None,
        samples: Sequence[Sample] = (),
    ) -> None:
        """Write the scores and the first sample."""
        del signatures
        if (bleu := bleu_name(metrics)) is not None:
            self._bleu = f"BLEU {metrics[bleu]:.2f} @{step}"
        self.say("  ".join([f"update {step}  {split}", *_eval_figures(metrics)]))
        for sample in samples[:1]:
            self.say(f"  source       {sample.source}")
            self.say(f"  reference    {sample.reference}")
            self.say(f"  translation  {sample.translation}")

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """Write where the checkpoint is."""
        del sha256
        scored = "" if score is None else f"  score {score:.2f}"
        self.say(f"update {step}  checkpoint {path}{scored}")

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Write the scores of the bundle."""
        for split, evaluation in evaluations.items():
            self.log_eval(split, step, evaluation.metrics, samples=evaluation.samples)
        self.say(f"update {step}  bundle {bundle}")

    def finish(self, status: RunStatus) -> None:
        """Close the bar and say how the run ended."""
        if self._task is not None:
            self._progress.stop()
        ended = "interrupted" if status == "killed" else status
        self.say(f"training {ended} after {_clock(self._elapsed())}")

    def say(self, line: str) -> None:
        """Write a line as it is; any thread may."""
        self._console.print(Text(line), soft_wrap=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _seconds_left(self, step: int) -> float | None:
        done = step - self._first_step
        if done <= 0:
            return None
        return self._elapsed() / done * max(0, self._max_updates - step)


def _train_figures(metrics: Mapping[str, float]) -> list[str]:
    figures = [f"epoch {metrics['epoch'] + 1:.0f}"] if "epoch" in metrics else []  # counted from 0, shown from 1
    formats = {"loss": "loss {:.4f}", "lr": "lr {:.2e}", "tokens_per_second": "{:,.0f} tokens/s"}
    return figures + [text.format(metrics[name]) for name, text in formats.items() if name in metrics]


def _eval_figures(metrics: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4f}" if name == "loss" else f"{name} {value:.2f}" for name, value in metrics.items()]


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
