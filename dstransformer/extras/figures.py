"""Figures: how they look and how they are saved. Imports matplotlib."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dstransformer.errors import UserError, shown
from dstransformer.io.files import replace_file, storage_errors
from dstransformer.io.products import check_text_output

#: Endings of the files that a figure can be saved as.
SUFFIXES = (".png", ".svg", ".pdf")

#: Colours of the lines of a figure, in this order.
COLOURS = (
    "#4269d0", "#e8833a", "#3ca951", "#a463f2", "#e15759",
    "#2a9d9d", "#b8860b", "#ff8ab7", "#7f8694", "#9c6b4e",
)  # fmt: skip


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this width and height in inches, of 110 pixels each in a PNG."""
    figure = Figure(figsize=(width, height), dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, title: str) -> None:
    """Give axes their title, a light grid, and no frame at the top and on the right."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def line_colours(count: int) -> list[str]:
    """Colours for ``count`` lines, all different."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    spectrum = mpl.colormaps["turbo"]
    return [mpl.colors.to_hex(spectrum(0.05 + 0.9 * number / (count - 1))) for number in range(count)]


def label_of(name: str) -> str:
    """A name of the user's as matplotlib has to get it: at most 60 characters, ``$`` is not mathematics."""
    text = shown(name, quote=False, limit=60).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # a leading underscore would hide the label


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest names that tell paths apart: the last part of each, with parent folders where it is needed."""
    parts = [path.absolute().parts for path in paths]
    lengths = [1] * len(parts)
    while True:
        names = [os.path.join(*own[-length:]) for own, length in zip(parts, lengths, strict=True)]  # noqa: PTH118
        longer = [
            length + (names.count(name) > 1 and length < len(own))
            for name, own, length in zip(names, parts, lengths, strict=True)
        ]
        if longer == lengths:
            return names
        lengths = longer


def check_picture(path: Path, *, overwrite: bool) -> None:
    """Check that a figure may be saved to a file.

    Raises:
        UserError: The ending is not one of :data:`SUFFIXES`, the path is a folder or in none, the file exists and may
            not be replaced, or it would be part of a corpus, a checkpoint or a bundle.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out {path}: the name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a file in it")
    check_text_output(path)
    if not path.absolute().parent.is_dir():
        raise UserError(f"--out {path}: {path.parent} is not a folder; make it first, or give another name")
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists: replace it with --overwrite, or give another name")


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure atomically, in the format that the ending of the file names. For a link, to where it points.

    Raises:
        StorageError: The file cannot be written.
    """
    with storage_errors(path, full="make room, or give another name"):
        replace_file(Path(os.path.realpath(path)), picture(figure, path.suffix.lower()))


def picture(figure: Figure, suffix: str) -> bytes:
    """A figure as the content of a file of one of the :data:`SUFFIXES`. The same figure gives the same bytes."""
    content = io.BytesIO()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    with warnings.catch_warnings(), mpl.rc_context({"svg.hashsalt": "dstransformer"}):
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font lacks
        figure.savefig(content, format=suffix.removeprefix("."), metadata=undated)
    return content.getvalue()
