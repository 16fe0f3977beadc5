"""Draws the learning rate of presets over the updates: the paper's (section 5.3, equation 3), and other kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dstransformer.config import ScheduleConfig, load_config
from dstransformer.errors import UserError
from dstransformer.extras.figures import label_of, line_colours, new_figure, style_axes
from dstransformer.training.schedule import decay_begin, learning_rate

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

    @property
    def corners(self) -> list[int]:
        """Updates that a drawing must hit: the peak and where a decay begins and ends."""
        if self.config.kind == "inverse_sqrt":
            return [self.peak]
        return [self.peak, decay_begin(self.config, self.max_updates), self.max_updates]

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
        steps = sorted({*spaced.tolist(), *(corner for corner in schedule.corners if corner <= updates)})
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
