"""Draws the curves of runs, and the learning rates of presets. Imports matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from dstransformer.config import ScheduleConfig, load_config
from dstransformer.errors import DataError, UserError, shown
from dstransformer.extras.figures import COLOURS, label_of, line_colours, new_figure, short_names, style_axes
from dstransformer.io.products import check_kind
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLine, read_records
from dstransformer.training.schedule import decay_begin, learning_rate

#: The y axis of gradient norms and perplexities is logarithmic if they span more than this factor.
MIN_LOG_RANGE = 20.0

#: Curves of fewer points mark each point.
MAX_MARKED_POINTS = 40


class Panel(NamedTuple):
    """One panel of the picture: its title, the metrics it shows, and its y axis."""

    title: str
    train: str = ""
    valid: tuple[str, ...] = ()
    smoothed: bool = True
    log: bool = False
    from_zero: bool = False


def draw_runs(runs: Sequence[RunCurves], smooth: int = 1) -> Figure:
    """Draw loss, perplexity, BLEU, learning rate, gradient norm and speed of one or several runs over the updates.

    Training is a line; validation is dashed, with a dot at each validation.

    Args:
        runs: At least one. A single run names the figure; several have a colour each.
        smooth: Show training curves, except the learning rate, as the mean of this many records; the records
            themselves are faint.
    """
    figure = new_figure(13, 7.4)
    single = len(runs) == 1
    colours = [(COLOURS[0], COLOURS[1])] if single else [(colour, colour) for colour in line_colours(len(runs))]
    for axes, panel in zip(figure.subplots(2, 3, sharex=True).flat, _panels(runs), strict=True):
        style_axes(axes, panel.title)
        for run, (train, valid) in zip(runs, colours, strict=True):
            for curve in run.matching(panel.train):
                _draw_train(axes, curve, train, smooth if panel.smoothed else 1)
            for curve in run.matching(*panel.valid):
                axes.plot(*curve, color=valid, linestyle="--", linewidth=1.2, marker="o", markersize=3)
        _scale_y_axis(axes, panel)
    for axes in figure.axes[3:]:
        axes.set_xlabel("update")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if single:
        figure.suptitle(label_of(runs[0].name))
    training = "training" if smooth == 1 else f"training, mean of {smooth} records"
    handles = [
        Line2D([], [], color=COLOURS[0] if single else "#555555", label=training),
        Line2D([], [], color=COLOURS[1] if single else "#555555", linestyle="--", marker="o", markersize=3,
               label="validation"),
    ]  # fmt: skip
    if not single:
        names = [Line2D([], [], color=colour, linewidth=3) for colour, _ in colours]
        for handle, run in zip(names, runs, strict=True):
            handle.set_label(label_of(run.name))
        handles = names + handles
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), 130 // (longest + 8)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _panels(runs: Sequence[RunCurves]) -> list[Panel]:
    # Validation BLEU or F1: of all sentences, of the first ones, or both if the setting changed.
    names = {name for run in runs for name in run.curves}
    scores = sorted(name for name in names if name.partition("_first_")[0] in ("valid/bleu", "valid/f1"))
    return [
        Panel("loss (nats per token)", "train/loss", ("valid/loss",)),
        Panel("perplexity", "train/perplexity", ("valid/perplexity",), log=True),
        Panel(f"validation {_describe(scores)}", "", tuple(scores)),
        Panel("learning rate", "train/lr", smoothed=False, from_zero=True),
        Panel("gradient norm", "train/grad_norm", log=True),
        Panel("tokens per second (source and target)", "train/tokens_per_second", from_zero=True),
    ]


def _describe(scores: Sequence[str]) -> str:
    """The metrics and sentences of scores. Scores of different sentences are not comparable."""
    metrics = dict.fromkeys("F1" if name.startswith("valid/f1") else "BLEU" for name in scores)
    kinds = list(
        dict.fromkeys(f"first {name.partition('_first_')[2]}" if "_first_" in name else "all" for name in scores)
    )
    sentences = "" if kinds in ([], ["all"]) else f", {' or '.join(kinds)} sentences"
    return (" or ".join(metrics) or "BLEU") + sentences


def _draw_train(axes: Axes, curve: Curve, colour: str, smooth: int) -> None:
    if smooth > 1:
        axes.plot(*curve, color=colour, linewidth=0.8, alpha=0.25)
        curve = Curve(curve.steps, moving_average(curve.values, smooth))
    marker = "o" if len(curve.steps) < MAX_MARKED_POINTS else ""
    axes.plot(*curve, color=colour, linewidth=1.4, marker=marker, markersize=3)


def _scale_y_axis(axes: Axes, panel: Panel) -> None:
    """Scale the y axis. A panel without a finite value gets the text "not recorded"."""
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    values = [value for numbers in drawn for value in numbers.tolist() if math.isfinite(value)]
    if not values:
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="#777777")
        axes.set_yticks([])
        return
    if panel.log and min(values) > 0 and max(values) > MIN_LOG_RANGE * min(values):
        axes.set_yscale("log")
        if max(values) < 1e4 * min(values):
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif panel.from_zero:
        axes.set_ylim(bottom=min(0.0, *values), top=1.08 * max(values) or None)
    if panel.train == "train/tokens_per_second":
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


#: The kinds of records that have curves.
KINDS = ("train", "valid")

#: Larger values are gaps, like values that are not finite: axes around them would overflow.
MAX_DRAWN = 1e100


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
        """The curves of these metrics, as far as the run has them."""
        return [self.curves[name] for name in names if name in self.curves]


def read_runs(folders: Sequence[Path]) -> list[RunCurves]:
    """Read the curves of runs. Their names are the shortest that tell their folders apart.

    Raises:
        DataError: A folder is not a run folder, is named twice, or has no metrics yet; or a line is damaged.
        OSError: A file cannot be read.
    """
    resolved = [folder.resolve() for folder in folders]
    runs = []
    for number, (folder, name) in enumerate(zip(folders, short_names(resolved), strict=True)):
        if resolved[number] in resolved[:number]:
            raise DataError(f"the run {folder} is named twice: name it once")
        check_kind(folder, "run", "name a folder that `dst train` wrote")
        metrics = folder / METRICS_NAME
        run = RunCurves(name, read_curves(metrics) if metrics.exists() else {})
        if not run.curves:
            raise DataError(
                f"the run {folder} has no metrics yet: its first record comes after training.log_every updates"
            )
        runs.append(run)
    return runs


def read_curves(metrics: Path) -> dict[str, Curve]:
    """Read the curves of ``metrics.jsonl``: every number of the records of training and validation.

    A last line that was cut off is ignored.

    Raises:
        DataError: A line is damaged.
        OSError: The file cannot be read.
    """
    curves: dict[str, Curve] = {}
    for record in without_repeats(read_records(metrics, skip_damaged=False)):
        for name, value in record.items():
            if name in ("kind", "step", "time") or name.endswith("_signature"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise DataError(
                    f"{metrics}: the {record['kind']} record of step {record['step']} is damaged: "
                    f"{shown(name, quote=False)} is {shown(value)}, not a number; delete its line"
                )
            curve = curves.setdefault(f"{record['kind']}/{name}", Curve([], []))
            curve.steps.append(record["step"])
            curve.values.append(_drawable(value))
    return curves


def without_repeats(records: Iterable[MetricsLine]) -> list[MetricsLine]:
    """Drop records of updates that a resumed run computed again.

    A record with a step that its kind has reached before means that the run resumed from an earlier checkpoint. Earlier
    records from that step on are dropped.
    """
    kept: list[MetricsLine] = []
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
    """The mean of each value and the ``count - 1`` before it. NaN stays NaN and is left out of means."""
    means = []
    for number, value in enumerate(values):
        window = [other for other in values[max(0, number - count + 1) : number + 1] if not math.isnan(other)]
        means.append(value if math.isnan(value) else math.fsum(other / len(window) for other in window))
    return means


def _drawable(value: float | None) -> float:
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:  # an integer beyond the range of floating point
        return math.nan
    return number if abs(number) <= MAX_DRAWN else math.nan


# Learning rates: the paper's (section 5.3, equation 3), and other kinds.

#: Default number of updates, as a multiple of the longest warm-up.
DEFAULT_WARMUPS = 5

#: Points of a curve with linear and with logarithmic spacing each, besides its peak.
POINTS = 500

MAX_UPDATES = 10**12


@dataclass(frozen=True)
class Schedule:
    """The learning rate of a preset.

    Attributes:
        name: The preset, as the user named it.
        d_model: The width that scales the rate.
        config: Warm-up, scale and kind.
        max_updates: The updates of a training, with which other kinds than the paper's end.
    """

    name: str
    d_model: int
    config: ScheduleConfig
    max_updates: int

    def rate(self, step: int) -> float:
        """The learning rate of update ``step``, from 1."""
        return learning_rate(step, self.d_model, self.config, self.max_updates)

    @property
    def peak(self) -> int:
        """The first update with the highest learning rate: the last of the warm-up."""
        return self.config.warmup_steps

    def describe(self) -> str:
        """Width, warm-up and peak, on one line."""
        scale = "" if self.config.scale == 1.0 else f", scale {self.config.scale:g}"
        kind = self.config.kind
        name = "" if kind == "inverse_sqrt" else f"{kind} to update {self.max_updates:,}, "
        return f"{name}d_model {self.d_model:,}{scale}, peak {self.rate(self.peak):.3g} at update {self.peak:,}"


def load_schedules(presets: Sequence[str]) -> list[Schedule]:
    """The schedules of presets, given by name or as YAML files.

    Raises:
        ConfigError: There is no such preset, or it is not valid.
        UserError: A preset is named twice.
    """
    for number, preset in enumerate(presets):
        if preset in presets[:number]:
            raise UserError(f"the preset {preset} is named twice: name it once")
    configs = [load_config(preset) for preset in presets]
    return [
        Schedule(preset, config.model.d_model, config.schedule, config.training.max_updates)
        for preset, config in zip(presets, configs, strict=True)
    ]


def draw_schedules(schedules: Sequence[Schedule], updates: int | None = None) -> Figure:
    """Draw learning rates from update 1 on, with a dot at each peak.

    Args:
        schedules: At least one.
        updates: The last update shown; None shows :data:`DEFAULT_WARMUPS` times the longest warm-up, and whole
            schedules that end.

    Raises:
        UserError: ``updates`` is less than 2 or more than :data:`MAX_UPDATES`.
    """
    if updates is None:
        ends = [schedule.max_updates + 1 for schedule in schedules if schedule.config.kind != "inverse_sqrt"]
        updates = max([DEFAULT_WARMUPS * max(schedule.peak for schedule in schedules) + 1, *ends])
        updates = min(updates, MAX_UPDATES)
    if not 2 <= updates <= MAX_UPDATES:
        raise UserError(f"--updates {updates}: give a number from 2 to {MAX_UPDATES:,}")
    figure = new_figure(9, 5)
    axes = figure.subplots()
    formula = ": scale · d_model$^{-0.5}$ · min(step$^{-0.5}$, step · warmup_steps$^{-1.5}$)"
    style_axes(axes, f"learning rate{formula if all(one.config.kind == 'inverse_sqrt' for one in schedules) else ''}")
    # Evenly spaced, and closer together at the beginning.
    spaced = np.concatenate([np.linspace(1, updates, POINTS), np.geomspace(1, updates, POINTS)]).round().astype(int)
    for schedule, colour in zip(schedules, line_colours(len(schedules)), strict=True):
        corners = [schedule.peak]
        if schedule.config.kind != "inverse_sqrt":  # where the decay begins and ends
            corners += [decay_begin(schedule.config, schedule.max_updates), schedule.max_updates]
        steps = sorted({*spaced.tolist(), *(corner for corner in corners if corner <= updates)})
        label = f"{label_of(schedule.name)}: {schedule.describe()}"
        axes.plot(steps, [schedule.rate(step) for step in steps], color=colour, linewidth=1.6, label=label)
        if schedule.peak <= updates:
            axes.plot([schedule.peak], [schedule.rate(schedule.peak)], "o", color=colour, markersize=6)
    axes.set_xlabel("update")
    axes.set_ylabel("learning rate")
    axes.set_xlim(0, updates)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    figure.legend(loc="outside lower center", ncols=1, frameon=False)
    return figure
