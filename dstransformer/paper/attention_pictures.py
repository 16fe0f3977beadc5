"""Pictures of attention as in Figures 3 to 5 of the paper: lines between words, and heat maps. Imports matplotlib.

Lengths are in inches from the top left, sizes of text in points. Heads and layers count from 1.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colorbar import Colorbar
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from dstransformer.paper.attention_view import FAINTEST, View, head_colour

logger = logging.getLogger(__name__)

INK, MUTED = "#1c1f24", "#8a919b"

#: Dots per inch of a PNG; fewer where a side would have more than ``MOST_DOTS``.
DPI, MOST_DOTS = 130, 8000

_MARGIN, _HEADING = 0.25, 1.05

# Lines: a row, its text, the gap that lines cross, a cell beside a key, the space beside a word.
_ROW, _ROW_TEXT, _GAP, _CELL, _SPACE = 0.215, 10.0, 3.0, 0.085, 0.07

# Heat maps: bounds of a cell, the side that few words fill, text, the gap between maps, the most that a row holds.
_SMALLEST, _LARGEST, _SIDE, _MAP_TEXT, _BETWEEN, _MOST_WIDTH, _MOST_COLUMNS = 0.14, 0.26, 2.4, 7.5, 0.34, 26.0, 4

_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "attention",  # the same picture has the same bytes
    "text.parse_math": False,
}


def draw_lines(view: View, layer: int, heads: Sequence[int]) -> dict[str, bytes]:
    """Lines from each query to what it attends to, coloured by head; the opacity of a line is its weight.

    With ``view.chosen`` only the lines of these queries are drawn. Cells in the colours of the heads then stand beside
    each key, as opaque as the largest weight that it receives.

    Returns:
        The picture by the ending of its file, ``svg`` and ``png``.
    """
    left, right = (_text_width(texts, _ROW_TEXT) for texts in (view.queries, view.keys))
    cells = 0.0 if view.chosen is None else _CELL * len(heads) + _SPACE
    begin = _MARGIN + left + _SPACE
    end = begin + _GAP
    rows = max(len(view.queries), len(view.keys))
    with mpl.rc_context(_STYLE):
        figure, axes = _canvas(end + cells + _SPACE + right + _MARGIN, _HEADING + _ROW * rows + _MARGIN)
        _write_heading(axes, view, layer, heads)
        for x, side, align in ((begin - _SPACE, 0, "right"), (end + cells + _SPACE, 1, "left")):
            axes.text(x, _HEADING - 0.12, view.sides[side], fontsize=8, color=MUTED, ha=align, va="center")
        for number, word in enumerate(view.queries):
            ink = INK if view.chosen is None or number in view.chosen else MUTED
            axes.text(begin - _SPACE, _row(number), word, fontsize=_ROW_TEXT, color=ink, ha="right", va="center")
        for number, word in enumerate(view.keys):
            x = end + cells + _SPACE
            axes.text(x, _row(number), word, fontsize=_ROW_TEXT, color=INK, ha="left", va="center")
        _add_lines(axes, view, layer, heads, (begin, end))
        if view.chosen is not None:
            _add_cells(axes, view, layer, heads, end + _SPACE)
        return _save(figure)


def draw_maps(view: View, layer: int, heads: Sequence[int]) -> dict[str, bytes]:
    """A heat map for each head: a row for each query, a column for each key, the colour for the weight.

    Returns:
        As :func:`draw_lines`.
    """
    rows, columns = len(view.queries), len(view.keys)
    cell = min(_LARGEST, max(_SMALLEST, _SIDE / max(rows, columns)))
    wide, high = cell * columns, cell * rows
    left, below = (_text_width(texts, _MAP_TEXT) + 0.1 for texts in (view.queries, view.keys))
    across = int(min(len(heads), _MOST_COLUMNS, max(1, _MOST_WIDTH // (wide + _BETWEEN))))
    down = -(-len(heads) // across)
    width = max(_MARGIN + left + across * (wide + _BETWEEN) + 0.75, 5.4)
    height = _HEADING + down * (high + _BETWEEN) + below + _MARGIN
    with mpl.rc_context(_STYLE):
        figure, page = _canvas(width, height)
        page.text(_MARGIN, 0.34, f"{view.title}, {_of(layer, view)}", fontsize=13, color=INK, va="center")
        what = f"rows: {view.sides[0]}; columns: what it {view.sides[1]}"
        page.text(_MARGIN, 0.62, what, fontsize=8, color=MUTED, va="center")
        for place, head in enumerate(heads):
            x = _MARGIN + left + place % across * (wide + _BETWEEN)
            y = _HEADING + place // across * (high + _BETWEEN)
            axes = figure.add_axes((x / width, 1 - (y + high) / height, wide / width, high / height))
            image = _add_map(axes, view, layer, head)
            if place % across == 0:
                axes.set_yticks(range(rows), view.queries, fontsize=_MAP_TEXT)
            if place + across >= len(heads):
                axes.set_xticks(range(columns), view.keys, fontsize=_MAP_TEXT, rotation=90)
        x = _MARGIN + left + across * (wide + _BETWEEN)
        tall = min(high, 2.2)
        bar = figure.add_axes((x / width, 1 - (_HEADING + tall) / height, 0.12 / width, tall / height))
        _add_scale(figure.colorbar(image, cax=bar))
        return _save(figure)


def warn_of_missing_letters(views: Sequence[View]) -> None:
    """Warn once of letters that the font of the PNG pictures lacks."""
    with mpl.rc_context(_STYLE):
        known = get_font(findfont(FontProperties())).get_charmap()
    words = {word for view in views for word in (*view.queries, *view.keys)}
    missing = sorted({letter for word in words for letter in word if ord(letter) not in known})
    if missing:
        logger.warning(
            "the font of the PNG pictures lacks %s: the page and the SVG pictures show %s",
            " ".join(missing[:8]) + (" …" if len(missing) > 8 else ""), "it" if len(missing) == 1 else "them",
        )  # fmt: skip


def _row(number: int) -> float:
    """The middle of a row of a picture of lines."""
    return _HEADING + _ROW * (number + 0.5)


def _of(layer: int, view: View) -> str:
    return f"layer {layer} of {view.weights.shape[0]}"


def _write_heading(axes: Axes, view: View, layer: int, heads: Sequence[int]) -> None:
    """The title, and the heads with their colours."""
    axes.text(_MARGIN, 0.3, f"{view.title}, {_of(layer, view)}", fontsize=13, color=INK, va="center")
    axes.text(_MARGIN, 0.58, "head" if len(heads) == 1 else "heads", fontsize=8.5, color=MUTED, va="center")
    for place, head in enumerate(heads):
        x = _MARGIN + 0.5 + 0.36 * place
        axes.add_patch(Rectangle((x, 0.52), 0.12, 0.12, color=head_colour(head), linewidth=0))
        axes.text(x + 0.16, 0.58, str(head), fontsize=8.5, color=INK, va="center")


def _add_lines(axes: Axes, view: View, layer: int, heads: Sequence[int], ends: tuple[float, float]) -> None:
    segments, colours = [], []
    for head in heads:
        weights = view.weights[layer - 1, head - 1]
        red, green, blue = to_rgb(head_colour(head))
        for query, key in np.argwhere(weights >= FAINTEST).tolist():
            if view.chosen is None or query in view.chosen:
                segments.append([(ends[0], _row(query)), (ends[1], _row(key))])
                colours.append((red, green, blue, float(weights[query, key])))
    faint_first = sorted(range(len(segments)), key=lambda number: colours[number][3])
    axes.add_collection(
        LineCollection(
            [segments[number] for number in faint_first],
            colors=[colours[number] for number in faint_first],
            linewidths=1.7,
        )
    )


def _add_cells(axes: Axes, view: View, layer: int, heads: Sequence[int], x: float) -> None:
    """Beside each key a cell for each head."""
    cells, colours = [], []
    for place, head in enumerate(heads):
        received = view.weights[layer - 1, head - 1][list(view.chosen or ())].max(axis=0)
        for key, weight in enumerate(received.tolist()):
            if weight >= FAINTEST:
                cells.append(Rectangle((x + _CELL * place, _row(key) - 0.08), _CELL, 0.16))
                colours.append((*to_rgb(head_colour(head)), weight))
    axes.add_collection(PatchCollection(cells, facecolors=colours, linewidths=0))


def _add_map(axes: Axes, view: View, layer: int, head: int) -> AxesImage:
    """The map of one head. Small weights get more of the colours than large ones: the scale is a square root."""
    image = axes.imshow(
        view.weights[layer - 1, head - 1],
        cmap="Blues",
        norm=PowerNorm(0.5, 0.0, 1.0),
        interpolation="none",
        aspect="auto",
    )
    axes.set_title(f"head {head}", fontsize=9, color=head_colour(head), loc="left", pad=4, fontweight="bold")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.tick_params(length=0, pad=3, colors=INK)
    axes.spines[:].set_color("#c9ced6")
    return image


def _add_scale(bar: Colorbar) -> None:
    ticks = (0.0, 0.05, 0.2, 0.5, 1.0)
    bar.set_ticks(list(ticks), labels=[f"{tick:.0%}" for tick in ticks], fontsize=_MAP_TEXT)
    bar.ax.tick_params(length=2, colors=INK)
    bar.outline.set_edgecolor("#c9ced6")


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure in inches, and axes over all of it, whose units are inches from the top left."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0.0, width)
    axes.set_ylim(height, 0.0)
    return figure, axes


def _text_width(texts: Sequence[str], size: float) -> float:
    """The width of the widest text, in inches."""
    renderer = FigureCanvasAgg(Figure(figsize=(1, 1), dpi=72)).get_renderer()
    font = FontProperties(size=size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        return max(renderer.get_text_width_height_descent(text, font, ismath=False)[0] for text in texts) / 72


def _save(figure: Figure) -> dict[str, bytes]:
    dpi = min(DPI, MOST_DOTS / max(figure.get_size_inches()))
    images = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # see warn_of_missing_letters
        for ending in ("svg", "png"):
            image = io.BytesIO()
            figure.savefig(image, format=ending, dpi=dpi, metadata={"Date": None} if ending == "svg" else None)
            images[ending] = image.getvalue()
    return images
