"""Plots the measured Table 1 with logarithmic axes: time and memory against length and width. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from dstransformer.io.figures import line_colours, new_figure, style_axes
from dstransformer.paper.table1 import Row, Table1
from dstransformer.paper.table1_measure import Cost, PowerLaw


class Quantity(NamedTuple):
    """What a line of panels shows: its title with the unit, units of it in one second or byte, and where it is."""

    title: str
    units: float
    value: Callable[[Cost], float]
    law: Callable[[Row], PowerLaw]


QUANTITIES = (
    Quantity("time of both passes in ms", 1e3, lambda cost: cost.seconds, lambda row: row.time),
    Quantity("peak memory in MB", 1e-6, lambda cost: cost.peak_bytes, lambda row: row.memory),
)

#: One for each layer type, as lines may lie on each other.
MARKERS = "osD^v"


def draw_table1(table: Table1, machine: str) -> Figure:
    """Plot time and memory against n at the largest d, and against d at the largest n.

    Dotted lines are the fits, where they were made; the legends give their exponents.

    Args:
        table: The measurements.
        machine: What they were made on, for the title.
    """
    n, d = table.settings.lengths[-1], table.settings.widths[-1]
    by_length = [(length, d) for length in table.settings.lengths]
    by_width = [(n, width) for width in table.settings.widths]
    figure = new_figure(13.5, 8.5)
    figure.suptitle(f"Table 1, measured: {machine}; dotted: the fits", fontsize=11)
    for (left, right), quantity in zip(figure.subplots(2, 2), QUANTITIES, strict=True):
        style_axes(left, f"{quantity.title}, d = {d:,}")
        style_axes(right, f"{quantity.title}, n = {n:,}")
        _draw_panel(left, table, quantity, by_length, varying=0)
        _draw_panel(right, table, quantity, by_width, varying=1)
        left.set_xlabel("length n")
        right.set_xlabel("width d")
    return figure


def _draw_panel(
    axes: Axes, table: Table1, quantity: Quantity, sizes: Sequence[tuple[int, int]], *, varying: int
) -> None:
    """Draw a line for each layer type over sizes in which the length (``varying`` 0) or the width (1) grows."""
    fitted = [size for size in sizes if size[0] in table.fitted[0] and size[1] in table.fitted[1]]
    for row, colour, marker in zip(table.rows, line_colours(len(table.rows)), MARKERS, strict=True):
        law = quantity.law(row)
        axes.plot(
            [size[varying] for size in sizes],
            [quantity.units * quantity.value(row.costs[size]) for size in sizes],
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.4,
            label=f"{row.kind.name}: ${'nd'[varying]}^{{{(law.n_exponent, law.d_exponent)[varying]:.2f}}}$",
        )
        axes.plot(
            [size[varying] for size in fitted],
            [quantity.units * law.value(*size) for size in fitted],
            color="black",
            linestyle=":",
            linewidth=1.2,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator([size[varying] for size in sizes]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=9)
