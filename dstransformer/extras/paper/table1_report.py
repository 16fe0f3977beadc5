"""The measured Table 1 as Markdown, as JSON, as plots with logarithmic axes, and as a folder with all of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from dstransformer import __version__
from dstransformer.extras.paper.table1 import PowerLaw, Row, Table1
from dstransformer.extras.paper.table1_layers import contiguous_path_length
from dstransformer.io.figures import line_colours, new_figure, picture, style_axes
from dstransformer.io.files import replace_folder, storage_errors, write_durably
from dstransformer.io.json_text import read_json
from dstransformer.io.products import check_output_folder
from dstransformer.model.ops import processor_name

FORMAT_VERSION = 1
JSON_NAME = "table1.json"
FILES = ("table1.md", JSON_NAME, "table1.png", "table1.svg")


def markdown(table: Table1) -> str:
    """The result as Markdown: orders beside fits, counted values, measurements at the largest size, and the method."""
    size, batch = table.settings.largest, table.settings.batch
    at_longest, at_largest = f"n = {size.n:,}", f"n = {size.n:,}, d = {size.d:,}"
    orders = [["layer type", "complexity per layer", "multiply-adds", "their fit", "time, fit", "memory, fit"]]
    counted = [["layer type", "sequential operations", at_longest, "maximum path length", at_longest]]
    measured = [[at_largest, "forward", "backward", "peak memory", "multiply-adds a second"]]
    for row in table.rows:
        kind, cost = row.kind, row.costs[size.n, size.d]
        orders.append([kind.name, kind.complexity, kind.formula, _law(row.count), _fit(row.time), _fit(row.memory)])
        operations, length = kind.sequential_operations(size), kind.path_length(size)
        counted.append([kind.name, kind.sequential, f"{operations:,}", kind.path, f"{length:,}"])
        rate = batch * kind.multiply_adds(size) / cost.forward_seconds
        forward, backward = (f"{_digits(1e3 * time)} ms" for time in (cost.forward_seconds, cost.backward_seconds))
        memory = f"{_digits(cost.peak_bytes / 1e6)} MB"
        measured.append([kind.name, forward, backward, memory, f"{_digits(rate / 1e9)} · 10⁹"])
    tables = [_table(*rows) for rows in (orders, counted, measured)]
    return "\n\n".join([*tables, _machine_and_method(table), _notes(table)])


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: list[str], *rows: list[str]) -> str:
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
    lengths, widths = (", ".join(f"{value:,}" for value in values) for values in table.settings.fitted)
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
    lengths, widths = settings.fitted
    return {
        "format_version": FORMAT_VERSION,
        "dstransformer": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(settings.device),
        "settings": {**asdict(settings), "device": str(settings.device), "precision": "fp32"},
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
        DataError: See :func:`check_output_folder`.
        StorageError: The folder cannot be created or read.
    """
    check_output_folder(out, "--out", "a result of `dst table1`", _is_result, FILES, overwrite=overwrite)
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent):
            pass  # it can be written to


def _is_result(folder: Path) -> bool:
    try:
        return "format_version" in read_json(folder / JSON_NAME, nan=True)
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


#: What the panels show: title with unit, units in a second or byte, and the attributes of costs and rows.
QUANTITIES = (
    ("time of both passes in ms", 1e3, "seconds", "time"),
    ("peak memory in MB", 1e-6, "peak_bytes", "memory"),
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
    settings = table.settings
    n, d = settings.lengths[-1], settings.widths[-1]
    figure = new_figure(13.5, 8.5)
    figure.suptitle(f"Table 1, measured: {machine}; dotted: the fits", fontsize=11)
    for (left, right), (title, units, cost, law) in zip(figure.subplots(2, 2), QUANTITIES, strict=True):
        style_axes(left, f"{title}, d = {d:,}")
        left.set_xlabel("length n")
        style_axes(right, f"{title}, n = {n:,}")
        right.set_xlabel("width d")
        for row, colour, marker in zip(table.rows, line_colours(len(table.rows)), MARKERS, strict=True):
            style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.4}
            values = {size: units * getattr(each, cost) for size, each in row.costs.items()}
            fit: PowerLaw = getattr(row, law)
            left.plot(
                settings.lengths, [values[length, d] for length in settings.lengths],
                label=f"{row.kind.name}: $n^{{{fit.n_exponent:.2f}}}$", **style,
            )  # fmt: skip
            right.plot(
                settings.widths, [values[n, width] for width in settings.widths],
                label=f"{row.kind.name}: $d^{{{fit.d_exponent:.2f}}}$", **style,
            )  # fmt: skip
            lengths, widths = settings.fitted
            dotted = {"color": "black", "linestyle": ":", "linewidth": 1.2}
            left.plot(lengths, [units * fit.value(length, d) for length in lengths], **dotted)
            right.plot(widths, [units * fit.value(n, width) for width in widths], **dotted)
        _scale_axes(left, settings.lengths)
        _scale_axes(right, settings.widths)
    return figure


def _scale_axes(axes: Axes, ticks: Sequence[int]) -> None:
    """Logarithmic axes, and the legend below."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=9)
