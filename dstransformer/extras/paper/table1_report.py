"""The measured Table 1 as Markdown, as JSON, as plots with logarithmic axes, and as a folder with all of them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from dstransformer import __version__
from dstransformer.errors import DataError, UserError
from dstransformer.extras.paper.table1 import LayerCost, PowerLaw, Row, Table1
from dstransformer.extras.paper.table1_formulas import Size, contiguous_path_length
from dstransformer.io.figures import line_colours, new_figure, picture, style_axes
from dstransformer.io.files import replace_folder, storage_errors, write_durably
from dstransformer.io.json_text import read_json
from dstransformer.io.products import enclosing_product
from dstransformer.model.ops import processor_name

FORMAT_VERSION = 1
JSON_NAME = "table1.json"
FILES = ("table1.md", JSON_NAME, "table1.png", "table1.svg")


def markdown(table: Table1) -> str:
    """The result as Markdown: orders beside fits, counted values, measurements at the largest size, and the method."""
    largest = table.settings.largest
    at_longest, at_largest = f"n = {largest.n:,}", f"n = {largest.n:,}, d = {largest.d:,}"
    orders = ["layer type", "complexity per layer", "multiply-adds", "their fit", "time, fit", "memory, fit"]
    counted = ["layer type", "sequential operations", at_longest, "maximum path length", at_longest]
    measured = [at_largest, "forward", "backward", "peak memory", "multiply-adds a second"]
    tables = [
        _table(orders, [_orders(row) for row in table.rows]),
        _table(counted, [_counted(row, largest) for row in table.rows]),
        _table(measured, [_measured(row, table) for row in table.rows]),
    ]
    return "\n\n".join([*tables, _machine_and_method(table), _notes(table)])


def _orders(row: Row) -> list[str]:
    kind = row.kind
    return [kind.name, kind.complexity, kind.formula, _law(row.count), _fit(row.time), _fit(row.memory)]


def _counted(row: Row, size: Size) -> list[str]:
    kind = row.kind
    operations, length = kind.sequential_operations(size), kind.path_length(size)
    return [kind.name, kind.sequential, f"{operations:,}", kind.path, f"{length:,}"]


def _measured(row: Row, table: Table1) -> list[str]:
    size = table.settings.largest
    cost = row.costs[size.n, size.d]
    rate = table.settings.batch * row.kind.multiply_adds(size) / cost.forward_seconds
    return [
        row.kind.name,
        f"{_digits(1e3 * cost.forward_seconds)} ms",
        f"{_digits(1e3 * cost.backward_seconds)} ms",
        f"{_digits(cost.peak_bytes / 1e6)} MB",
        f"{_digits(rate / 1e9)} · 10⁹",
    ]


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def _law(law: PowerLaw) -> str:
    return f"n^{law.n_exponent:.2f} · d^{law.d_exponent:.2f}"


def _fit(law: PowerLaw) -> str:
    return f"{_law(law)} (± {100 * law.residual:.0f}%)"


def _machine_and_method(table: Table1) -> str:
    settings = table.settings
    memory = (
        "torch.cuda.max_memory_allocated"
        if settings.device.type == "cuda"
        else "PyTorch's profiler, which sees tensors and not what libraries allocate for themselves"
    )
    return (
        f"{machine(settings.device)}; {datetime.now(UTC):%Y-%m-%d}. Forward and backward pass of one layer in fp32, "
        f"without biases; batch {settings.batch}, k = {settings.kernel}, r = {settings.neighbourhood}. Times are "
        f"medians of at least {settings.repetitions} passes after a warm-up. Memory is the peak beyond inputs and "
        f"weights, by {memory}."
    )


def _notes(table: Table1) -> str:
    lengths, widths = (", ".join(f"{value:,}" for value in values) for values in table.fitted)
    longest, kernel = table.settings.lengths[-1], table.settings.kernel
    return "\n".join(
        [
            f"- **Fits** are least squares on logarithms over n = {lengths} and d = {widths}; ± is the root mean "
            "square of the relative deviations. Multiply-adds are those of the forward pass over one sequence.",
            "- **Self-attention** is softmax(q kᵀ / √d) v on given q, k and v with one head, as the paper's table "
            "counts it. A layer of the Transformer has projections too, which add n·d²: the last row.",
            "- **Restricted self-attention** computes bands: blocks of r queries see 2r − 1 keys. About half of these "
            "scores are masked; the multiply-adds count the others.",
            "- **Recurrent** is nn.RNN with tanh. An LSTM has four times the multiply-adds.",
            "- **Convolutional** is a causal nn.Conv1d. The path leads through a stack with dilations 1, k, k², …; "
            f"without dilation it is O(n/k), {contiguous_path_length(longest, kernel):,} layers at n = {longest:,}.",
        ]
    )


def machine(device: torch.device) -> str:
    """The processor or the GPU, the threads and PyTorch's version."""
    threads = torch.get_num_threads()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{processor_name()}, {threads} threads"
    return f"{name}, torch {torch.__version__}"


def to_json(table: Table1) -> dict[str, Any]:
    """The result as plain data; docs/reference/formats.md describes it."""
    settings = table.settings
    lengths, widths = table.fitted
    return {
        "format_version": FORMAT_VERSION,
        "dstransformer": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(settings.device),
        "settings": {
            "lengths": settings.lengths,
            "widths": settings.widths,
            "neighbourhood": settings.neighbourhood,
            "kernel": settings.kernel,
            "batch": settings.batch,
            "repetitions": settings.repetitions,
            "device": str(settings.device),
            "precision": "fp32",
        },
        "fitted": {"lengths": lengths, "widths": widths},
        "layers": [_row_json(row, table) for row in table.rows],
    }


def _row_json(row: Row, table: Table1) -> dict[str, Any]:
    size = table.settings.size
    kind, width = row.kind, table.settings.widths[0]
    return {
        "name": kind.name,
        "complexity": kind.complexity,
        "sequential": kind.sequential,
        "path": kind.path,
        "fits": {name: vars(law) for name, law in (("time", row.time), ("memory", row.memory), ("count", row.count))},
        "counted": [
            {
                "n": n,
                "sequential_operations": kind.sequential_operations(size(n, width)),
                "path_length": kind.path_length(size(n, width)),
            }
            for n in table.settings.lengths
        ],
        "measured": [
            {"n": n, "d": d, "multiply_adds": kind.multiply_adds(size(n, d)), **vars(cost)}
            for (n, d), cost in row.costs.items()
        ],
    }


def check_folder(out: Path, *, overwrite: bool) -> None:
    """Check that a result can be written to a folder, before the measurements take minutes.

    Args:
        out: The folder; need not exist. Its parent folders are created.
        overwrite: Whether an earlier result may be replaced.

    Raises:
        DataError: The folder is part of a corpus, a checkpoint or a bundle, holds anything but an earlier result, or
            holds one and ``overwrite`` is false.
        StorageError: The folder cannot be created or read.
    """
    target = Path(os.path.realpath(out))
    found = enclosing_product(target)
    if found is not None and (found[0] != "run" or found[1] == target):
        raise DataError(f"--out {out} is or lies in the {found[0]} {found[1]}: choose another folder")
    if target.exists() and not target.is_dir():
        raise DataError(f"--out {out} is a file: name a folder")
    with storage_errors(out):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent):
            pass  # it can be written to
        present = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
    if not present:
        return
    if others := [name for name in present if name not in FILES]:
        raise DataError(f"--out {out} holds {others[0]}, which `dst table1` did not write: choose another folder")
    if not _is_result(target / JSON_NAME):
        raise DataError(f"--out {out} is not empty and not a result of `dst table1`: choose another folder")
    if not overwrite:
        raise UserError(f"--out {out} holds a result already: replace it with --overwrite, or choose another folder")


def _is_result(path: Path) -> bool:
    try:
        return "format_version" in read_json(path, nan=True)
    except (OSError, ValueError, TypeError):
        return False


def write_folder(table: Table1, out: Path) -> None:
    """Write the four files into a folder atomically; an earlier result is replaced. See :func:`check_folder`.

    Raises:
        StorageError: The folder cannot be written.
    """
    figure = draw_table1(table, machine(table.settings.device))
    contents: dict[str, str | bytes] = {
        "table1.md": markdown(table) + "\n",
        JSON_NAME: json.dumps(to_json(table), indent=2) + "\n",
        "table1.png": picture(figure, ".png"),
        "table1.svg": picture(figure, ".svg"),
    }

    def write(folder: Path) -> None:
        folder.mkdir()
        for name, content in contents.items():
            write_durably(folder / name, content)

    replace_folder(out, write, full="make room, or choose another folder")


class Quantity(NamedTuple):
    """What a row of panels shows: title with unit, units in a second or byte, and the functions that return it."""

    title: str
    units: float
    value: Callable[[LayerCost], float]
    law: Callable[[Row], PowerLaw]


QUANTITIES = (
    Quantity("time of both passes in ms", 1e3, lambda cost: cost.seconds, lambda row: row.time),
    Quantity("peak memory in MB", 1e-6, lambda cost: cost.peak_bytes, lambda row: row.memory),
)

#: One for each layer type, because lines may overlap.
MARKERS = "osD^v"


def draw_table1(table: Table1, machine: str) -> Figure:
    """Plot time and memory against n at the largest d, and against d at the largest n.

    Dotted lines are the fits, over the sizes that were fitted; the legends give their exponents.

    Args:
        table: The measurements.
        machine: The machine that was measured, for the title.
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
