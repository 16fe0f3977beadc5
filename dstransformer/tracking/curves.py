"""Reads the curves of a run from its ``metrics.jsonl``: each metric over the updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dstransformer.errors import DataError, shown
from dstransformer.io.figures import short_names
from dstransformer.io.products import is_run
from dstransformer.tracking.metrics_log import METRICS_NAME, Record, read_records

#: The kinds of records that have curves.
KINDS = ("train", "valid")

#: Larger numbers are gaps, as are those that are not finite: axes around them would overflow.
LARGEST = 1e100


class Curve(NamedTuple):
    """A metric over the updates: ``values[i]`` at update ``steps[i]``, in increasing order; NaN for a gap."""

    steps: list[int]
    values: list[float]


@dataclass(frozen=True)
class RunCurves:
    """The curves of a run.

    Attributes:
        name: The name of the run in a legend.
        curves: By name of the metric: ``train/loss``, ``valid/bleu_first_500``.
    """

    name: str
    curves: Mapping[str, Curve]

    def matching(self, *names: str) -> list[Curve]:
        """The curves of these metrics, as far as there are any."""
        return [self.curves[name] for name in names if name in self.curves]

    @property
    def score_names(self) -> list[str]:
        """The names of validation BLEU or F1: of the whole set, of its first sentences, or both after a change."""
        return [name for name in self.curves if name.partition("_first_")[0] in ("valid/bleu", "valid/f1")]


def read_runs(folders: Sequence[Path]) -> list[RunCurves]:
    """Read the curves of runs. Their names are the shortest that tell their folders apart.

    Raises:
        DataError: A folder is not a run's, is named twice, has no metrics yet, or a line of its metrics is damaged.
        OSError: A file cannot be read.
    """
    resolved = [folder.resolve() for folder in folders]
    runs = []
    for number, (folder, name) in enumerate(zip(folders, short_names(resolved), strict=True)):
        if resolved[number] in resolved[:number]:
            raise DataError(f"the run {folder} is named twice: name it once")
        if not folder.is_dir() or not is_run(folder):
            what = "is not the folder of a run" if folder.exists() else "does not exist"
            raise DataError(f"{folder} {what}: name a folder that `dst train` wrote")
        metrics = folder / METRICS_NAME
        run = RunCurves(name, read_curves(metrics) if metrics.exists() else {})
        if not run.curves:
            raise DataError(
                f"the run {folder} has no metrics yet: its first record comes after training.log_every updates"
            )
        runs.append(run)
    return runs


def read_curves(metrics: Path, *, skip_damaged: bool = False) -> dict[str, Curve]:
    """Read the curves of ``metrics.jsonl``: every number of the records of training and validation.

    Args:
        metrics: The file.
        skip_damaged: Ignore damaged lines. A last line that was cut off is always ignored.

    Raises:
        DataError: A line is damaged.
        OSError: The file cannot be read.
    """
    curves: dict[str, Curve] = {}
    for record in without_repeats(read_records(metrics, skip_damaged=skip_damaged)):
        for name, value in record.items():
            if name in ("kind", "step", "time") or name.endswith("_signature"):
                continue
            if value is not None and not _is_number(value):
                if skip_damaged:
                    continue
                raise DataError(
                    f"{metrics}: the {record['kind']} record of step {record['step']} is damaged: "
                    f"{shown(name, quote=False)} is {shown(value)}, not a number; delete its line"
                )
            curve = curves.setdefault(f"{record['kind']}/{name}", Curve([], []))
            curve.steps.append(record["step"])
            curve.values.append(_drawable(value))
    return curves


def without_repeats(records: Iterable[Record]) -> list[Record]:
    """Drop what a resumed run computed again.

    A record whose step its kind has reached before says that the run went back to an earlier checkpoint. Whatever was
    recorded from that step on belongs to the abandoned continuation.
    """
    kept: list[Record] = []
    newest: dict[str, int] = {}
    for record in records:
        kind, step = record["kind"], record["step"]
        if kind not in KINDS:
            continue
        if step <= newest.get(kind, -1):
            kept = [earlier for earlier in kept if earlier["step"] < step]
            newest = {earlier["kind"]: earlier["step"] for earlier in kept}
        kept.append(record)
        newest[kind] = step
    return kept


def moving_average(values: Sequence[float], count: int) -> list[float]:
    """The mean of each value and the ``count - 1`` before it. NaN stays NaN and enters no mean."""
    means = []
    for number, value in enumerate(values):
        window = [other for other in values[max(0, number - count + 1) : number + 1] if not math.isnan(other)]
        means.append(value if math.isnan(value) else math.fsum(other / len(window) for other in window))
    return means


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _drawable(value: float | None) -> float:
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:  # an integer beyond the range of floating point
        return math.nan
    return number if abs(number) <= LARGEST else math.nan
