"""Pictures of attention as in Figures 3 to 5 of the paper: lines between words, heat maps, and an interactive page.

First the data of a picture: words, weights, which lines to draw, and the colours of heads.

The page is one HTML file with weights, styles and script inside; it needs no network. In the pictures, drawn by
matplotlib, lengths are in inches from the top left, sizes of text in points. Heads and layers count from 1.
"""

from __future__ import annotations

import base64
import colorsys
import io
import logging
import re
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from dstransformer.data import EOS_ID, Tokenizer

logger = logging.getLogger(__name__)

Weights = npt.NDArray[np.float32]

#: The minimum weight whose line is drawn; fainter lines are invisible.
MIN_WEIGHT = 0.02

_COLOURS = ("#1f6fd6", "#e8590c", "#2b8a3e", "#c2255c", "#7048e8", "#0b9a9a", "#a0660a", "#74808c")
_GOLDEN_RATIO = 0.618034
_SPACE_PIECE = "▁"
_BYTE = re.compile("<0x([0-7][0-9A-F])>")  # of an ASCII letter

INK, MUTED = "#1c1f24", "#8a919b"

#: Dots per inch of a PNG; fewer where a side would have more than ``MAX_DOTS``.
DPI, MAX_DOTS = 110, 8000

_MARGIN, _HEADING = 0.25, 1.05

# The text of a side's label; the width of a head in the legend.
_SIDE_TEXT, _LEGEND = 8.0, 0.36

# Lines: height and text of a row, the gap that lines cross, a cell beside a key, the space beside a word.
_ROW, _ROW_TEXT, _GAP, _CELL, _SPACE = 0.215, 10.0, 3.0, 0.085, 0.07

# Heat maps: bounds of a cell, the minimum side, text, the gap between maps, the maximum width and number of a row.
_MIN_CELL, _MAX_CELL, _MIN_SIDE, _MAP_TEXT, _MAP_GAP, _MAX_WIDTH, _MAX_COLUMNS = 0.14, 0.26, 2.4, 7.5, 0.34, 26.0, 4

_UPRIGHT: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "top"}

#: Without a date, so that the bytes are reproducible, and with fast compression.
_FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"pil_kwargs": {"compress_level": 4}},
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "attention",  # the same picture has the same bytes
    "text.parse_math": False,
    "image.composite_image": False,  # a map stays as sharp as its cells
}


# By kind of attention: its title, and the labels of the queries and the keys.
_LABELS = {
    "encoder": ("encoder self-attention", "source word", "attends to"),
    "decoder": ("decoder self-attention", "predicted word", "attends to (earlier words)"),
    "cross": ("encoder-decoder attention", "predicted word", "attends to (source words)"),
}


@dataclass(frozen=True)
class Sentence:
    """The positions of a sentence, as pieces and as words.

    Attributes:
        pieces: The pieces of the tokenizer, ``▁`` for a space.
        words: The words. Words are separated by spaces; punctuation pieces at their ends are separate words, and so are
            ``<s>`` and ``</s>``.
        word_of: The word that each piece belongs to, ``(pieces,)`` int64, ascending.
    """

    pieces: tuple[str, ...]
    words: tuple[str, ...]
    word_of: npt.NDArray[np.int64]

    @classmethod
    def from_ids(cls, tokenizer: Tokenizer, ids: Sequence[int]) -> Sentence:
        """The sentence of these IDs, which may include BOS and EOS."""
        pieces = tokenizer.pieces(ids)
        starts = sorted(_word_starts(pieces))
        ends = [*starts[1:], len(pieces)]
        words = [_spell(tokenizer, ids[start:end], pieces[start:end]) for start, end in zip(starts, ends, strict=True)]
        lengths = np.subtract(ends, starts)
        return cls(tuple(pieces), tuple(words), np.repeat(np.arange(len(words), dtype=np.int64), lengths))

    def find(self, name: str) -> list[int]:
        """The pieces of all words equal to the name, ignoring case; if there are none, the pieces equal to it."""
        named = [i for i, word in enumerate(self.word_of) if self.words[word].casefold() == name.casefold()]
        return named or [i for i, piece in enumerate(self.pieces) if piece == name]


@dataclass(frozen=True)
class View:
    """One kind of attention of a sentence pair, as it is drawn.

    Attributes:
        kind: ``encoder``, ``decoder`` or ``cross``.
        queries: The words that attend, in order.
        keys: The words that they attend to, in order.
        weights: ``(layers, heads, queries, keys)``; each row sums to 1.
        chosen: The queries whose lines are drawn; None for all.
    """

    kind: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Weights
    chosen: tuple[int, ...] | None = None

    @property
    def title(self) -> str:
        """The paper's name of the kind (section 3.2.3)."""
        return _LABELS[self.kind][0]

    @property
    def sides(self) -> tuple[str, str]:
        """Labels of the queries and the keys."""
        return _LABELS[self.kind][1:]


def merge_weights(weights: Weights, queries: Sentence, keys: Sentence) -> Weights:
    """Weights between words: ``A'[w, v] = 1/|w| · sum over i in w, j in v of A[i, j]``.

    A word receives the sum of what its pieces receive, and attends as its pieces do on average, so each row sums to 1.

    Args:
        weights: Between pieces, ``(…, query pieces, key pieces)``.
        queries: The sentence of the queries.
        keys: The sentence of the keys.

    Returns:
        ``(…, query words, key words)``.
    """
    by_key = np.add.reduceat(weights, np.unique(keys.word_of, return_index=True)[1], axis=-1)
    _, starts, counts = np.unique(queries.word_of, return_index=True, return_counts=True)
    return (np.add.reduceat(by_key, starts, axis=-2) / counts[:, None]).astype(np.float32)


def head_colour(head: int) -> str:
    """The colour of a head, counted from 1, as ``#rrggbb``: the same in every picture."""
    if head <= len(_COLOURS):
        return _COLOURS[head - 1]
    red, green, blue = colorsys.hls_to_rgb(head * _GOLDEN_RATIO % 1.0, 0.46, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _word_starts(pieces: Sequence[str]) -> set[int]:
    """Where words begin: at a space, at and after a special piece, and around punctuation at the ends."""
    spaced = [0, *(i for i in range(1, len(pieces)) if pieces[i].startswith(_SPACE_PIECE))]
    spaced += [j for i, piece in enumerate(pieces) if piece in ("<s>", "</s>") for j in (i, i + 1)]
    starts = {start for start in spaced if start < len(pieces)}
    for start, end in zip(sorted(starts), [*sorted(starts)[1:], len(pieces)], strict=True):
        first, last = start + (pieces[start] == _SPACE_PIECE), end  # a lone space belongs to the next word
        while first < last and _is_punctuation(pieces[first]):
            first += 1
            starts.add(first)
        while last > first and _is_punctuation(pieces[last - 1]):
            last -= 1
            starts.add(last)
    return {start for start in starts if start < len(pieces)}


def _is_punctuation(piece: str) -> bool:
    byte = _BYTE.fullmatch(piece)
    text = chr(int(byte[1], 16)) if byte else piece.removeprefix(_SPACE_PIECE)
    return bool(text) and all(unicodedata.category(letter)[0] in "PS" for letter in text)


def _spell(tokenizer: Tokenizer, ids: Sequence[int], pieces: Sequence[str]) -> str:
    """The text of a word; the names of special pieces, which have no text."""
    if min(ids) <= EOS_ID:
        return "".join(pieces).replace(_SPACE_PIECE, "")
    return tokenizer.decode([ids])[0].strip() or pieces[0]


def draw_lines(view: View, layer: int, heads: Sequence[int]) -> dict[str, bytes]:
    """Lines from each query to what it attends to, coloured by head; the opacity of a line is its weight in percent.

    With ``view.chosen`` only the lines of these queries are drawn. Cells in the colours of the heads then stand beside
    each key, as opaque as the largest weight that it receives.

    Returns:
        The picture by the ending of its file, ``svg`` and ``png``.
    """
    words = zip((view.queries, view.keys), view.sides, strict=True)
    left, right = (max(_text_width(texts, _ROW_TEXT), _text_width([side], _SIDE_TEXT)) for texts, side in words)
    cells = 0.0 if view.chosen is None else _CELL * len(heads) + _SPACE
    begin = _MARGIN + left + _SPACE
    legend = 2 * _MARGIN + _LEGEND * (len(heads) + 1.4)
    rows = max(len(view.queries), len(view.keys))
    gap = min(5.0, max(_GAP, 0.11 * rows))
    end = begin + max(gap, legend - begin - cells - _SPACE - right - _MARGIN)
    with mpl.rc_context(_STYLE):
        figure, axes = _canvas(end + cells + _SPACE + right + _MARGIN, _HEADING + _ROW * rows + _MARGIN)
        _write_heading(axes, view, layer, heads)
        for x, side, align in ((begin - _SPACE, 0, "right"), (end + cells + _SPACE, 1, "left")):
            axes.text(x, _HEADING - 0.12, view.sides[side], fontsize=_SIDE_TEXT, color=MUTED, ha=align, va="center")
        for number, word in enumerate(view.queries):
            ink = INK if view.chosen is None or number in view.chosen else MUTED
            _add_word(axes, begin - _SPACE, _row_middle(number), word, _ROW_TEXT, color=ink, ha="right")
        for number, word in enumerate(view.keys):
            _add_word(axes, end + cells + _SPACE, _row_middle(number), word, _ROW_TEXT, ha="left")
        _add_lines(axes, view, layer, heads, (begin, end))
        if view.chosen is not None:
            _add_cells(axes, view, layer, heads, end + _SPACE)
        return _save(figure, axes)


def draw_maps(view: View, layer: int, heads: Sequence[int]) -> dict[str, bytes]:
    """A heat map for each head: a row for each query, a column for each key, the colour for the weight.

    Returns:
        As :func:`draw_lines`.
    """
    rows, columns = len(view.queries), len(view.keys)
    cell = min(_MAX_CELL, max(_MIN_CELL, _MIN_SIDE / max(rows, columns)))
    map_width, map_height = cell * columns, cell * rows
    left, below = (_text_width(texts, _MAP_TEXT) + 0.1 for texts in (view.queries, view.keys))
    maps_per_row = int(min(len(heads), _MAX_COLUMNS, max(1, _MAX_WIDTH // (map_width + _MAP_GAP))))
    map_rows = -(-len(heads) // maps_per_row)
    what = f"rows: {view.sides[0]}; columns: what it {view.sides[1]}"
    width = max(
        _MARGIN + left + maps_per_row * (map_width + _MAP_GAP) + 0.75, _text_width([what], _SIDE_TEXT) + 2 * _MARGIN
    )
    height = _HEADING + map_rows * (map_height + _MAP_GAP) - _MAP_GAP + below + _MARGIN
    with mpl.rc_context(_STYLE):
        figure, axes = _canvas(width, height)
        axes.text(_MARGIN, 0.34, f"{view.title}, {_layer_label(layer, view)}", fontsize=13, color=INK, va="center")
        axes.text(_MARGIN, 0.62, what, fontsize=_SIDE_TEXT, color=MUTED, va="center")
        for index, head in enumerate(heads):
            x = _MARGIN + left + index % maps_per_row * (map_width + _MAP_GAP)
            y = _HEADING + index // maps_per_row * (map_height + _MAP_GAP)
            axes.text(x, y - 0.1, f"head {head}", fontsize=9, color=head_colour(head), fontweight="bold", va="center")
            _add_map(axes, view.weights[layer - 1, head - 1], (x, x + map_width, y + map_height, y))
            if index % maps_per_row == 0:
                for number, word in enumerate(view.queries):
                    _add_word(axes, x - 0.05, y + cell * (number + 0.5), word, _MAP_TEXT, ha="right")
            if index + maps_per_row >= len(heads):
                for number, word in enumerate(view.keys):
                    middle = x + cell * (number + 0.5)
                    axes.text(middle, y + map_height + 0.05, word, fontsize=_MAP_TEXT, color=INK, **_UPRIGHT)
        x, high = _MARGIN + left + maps_per_row * (map_width + _MAP_GAP), min(map_height, 2.2)
        # The colour scale of the maps, with evenly spaced colours.
        _add_map(axes, np.linspace(1.0, 0.0, 128)[:, None] ** 2, (x, x + 0.12, _HEADING + high, _HEADING))
        for weight in (0.0, 0.05, 0.2, 0.5, 1.0):
            y = _HEADING + high * (1.0 - weight**0.5)
            _add_word(axes, x + 0.18, y, f"{weight:.0%}", _MAP_TEXT, ha="left")
        return _save(figure, axes)


def warn_of_missing_letters(views: Sequence[View]) -> None:
    """Warn once about characters that the font of the PNG pictures lacks."""
    with mpl.rc_context(_STYLE):
        known = get_font(findfont(FontProperties())).get_charmap()
    words = {word for view in views for word in (*view.queries, *view.keys)}
    missing = sorted({letter for word in words for letter in word if ord(letter) not in known})
    if missing:
        logger.warning(
            "the font of the PNG pictures lacks %s: the page and the SVG pictures show %s",
            " ".join(missing[:8]) + (" …" if len(missing) > 8 else ""), "it" if len(missing) == 1 else "them",
        )  # fmt: skip


def _row_middle(number: Any) -> Any:
    """The middle of a row, or of an array of rows, of a picture of lines."""
    return _HEADING + _ROW * (number + 0.5)


def _layer_label(layer: int, view: View) -> str:
    return f"layer {layer} of {view.weights.shape[0]}"


def _write_heading(axes: Axes, view: View, layer: int, heads: Sequence[int]) -> None:
    """The title, and the heads with their colours."""
    axes.text(_MARGIN, 0.3, f"{view.title}, {_layer_label(layer, view)}", fontsize=13, color=INK, va="center")
    axes.text(_MARGIN, 0.58, "head" if len(heads) == 1 else "heads", fontsize=8.5, color=MUTED, va="center")
    for index, head in enumerate(heads):
        x = _MARGIN + _LEGEND * (index + 1.4)
        axes.add_patch(Rectangle((x, 0.52), 0.12, 0.12, color=head_colour(head), linewidth=0))
        axes.text(x + 0.16, 0.58, str(head), fontsize=8.5, color=INK, va="center")


def _add_lines(axes: Axes, view: View, layer: int, heads: Sequence[int], ends: tuple[float, float]) -> None:
    """A line for each weight, faint ones below dark ones. Lines of one head and one percentage are one path."""
    weights = view.weights[layer - 1, [head - 1 for head in heads]]
    percents = np.where(weights >= MIN_WEIGHT, np.rint(100.0 * weights), 0.0)
    if view.chosen is not None:
        percents[:, np.setdiff1d(np.arange(len(view.queries)), view.chosen)] = 0.0
    for percent in np.unique(percents[percents > 0.0]):
        for head, of_head in zip(heads, percents, strict=True):
            queries, keys = np.nonzero(of_head == percent)
            if not len(queries):
                continue
            corners = np.empty((len(queries), 2, 2))
            corners[:, :, 0] = ends
            corners[:, 0, 1], corners[:, 1, 1] = _row_middle(queries), _row_middle(keys)
            lines = Path(corners.reshape(-1, 2), [Path.MOVETO, Path.LINETO] * len(queries))
            lines.should_simplify = False
            colour = (*to_rgb(head_colour(head)), percent / 100.0)
            axes.add_patch(PathPatch(lines, fill=False, edgecolor=colour, linewidth=1.7))


def _add_cells(axes: Axes, view: View, layer: int, heads: Sequence[int], x: float) -> None:
    """Beside each key a cell for each head."""
    cells, colours = [], []
    for index, head in enumerate(heads):
        received = view.weights[layer - 1, head - 1][list(view.chosen or ())].max(axis=0)
        for key, weight in enumerate(received.tolist()):
            if weight >= MIN_WEIGHT:
                cells.append(Rectangle((x + _CELL * index, _row_middle(key) - 0.08), _CELL, 0.16))
                colours.append((*to_rgb(head_colour(head)), weight))
    axes.add_collection(PatchCollection(cells, facecolors=colours, linewidths=0))


def _add_map(axes: Axes, values: npt.NDArray[np.floating], extent: tuple[float, float, float, float]) -> None:
    """An image of weights with a frame. Small weights get more of the colours: they follow the square root."""
    scale = PowerNorm(0.5, 0.0, 1.0)
    axes.imshow(values, cmap="Blues", norm=scale, interpolation="none", aspect="auto", extent=extent)
    left, right, bottom, top = extent
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="#c9ced6", linewidth=0.8))


def _add_word(axes: Axes, x: float, y: float, word: str, size: float, *, ha: str, color: str = INK) -> None:
    """A word in the middle of the row ``y``. Its baseline does not depend on its letters."""
    axes.text(x, y + 0.36 * size / 72, word, fontsize=size, color=color, ha=ha, va="baseline")


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure in inches, and axes over all of it; :func:`_save` gives them inches from the top left as units."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    return figure, axes


def _text_width(texts: Sequence[str], size: float) -> float:
    """The width of the widest text, in inches."""
    renderer = FigureCanvasAgg(Figure(figsize=(1, 1), dpi=72)).get_renderer()  # type: ignore[no-untyped-call]
    font = FontProperties(size=size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        return max(float(renderer.get_text_width_height_descent(text, font, ismath=False)[0]) for text in texts) / 72


def _save(figure: Figure, axes: Axes) -> dict[str, bytes]:
    width, height = figure.get_size_inches()
    axes.set_xlim(0.0, width)
    axes.set_ylim(height, 0.0)
    dpi = min(DPI, MAX_DOTS / max(width, height))
    images = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # see warn_of_missing_letters
        for ending, options in _FORMATS.items():
            image = io.BytesIO()
            figure.savefig(image, format=ending, dpi=dpi, **options)
            images[ending] = image.getvalue()
    return images


#: A weight of 1 in the page, which holds weights as 16-bit integers.
SCALE = 65535


def render_page(
    views: Sequence[View], facts: Mapping[str, str], *, kind: str, layer: int, heads: Sequence[int], whole_words: bool
) -> str:
    """The page as HTML.

    Args:
        views: The kinds of attention that it offers, of the same heads.
        facts: Facts for the header of the page: ``source``, ``target`` and ``model``.
        kind: The kind that it opens with.
        layer: The layer that it opens with, from 1.
        heads: The heads that it opens with, from 1.
        whole_words: Whether the pieces of words are merged.
    """
    count = views[0].weights.shape[1]
    layers = " + ".join(str(depth) for depth in dict.fromkeys(len(view.weights) for view in views))
    data = {
        "kinds": {view.kind: _describe(view) for view in views},
        "colours": [head_colour(head) for head in range(1, count + 1)],
        "minWeight": MIN_WEIGHT,
        "scale": SCALE,
        "opening": {"kind": kind, "layer": layer, "heads": list(heads)},
    }
    environment = Environment(
        loader=PackageLoader("dstransformer.extras.paper"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}  # keys in the order of the views
    page = environment.get_template("attention.html")
    return page.render(
        data=data, facts=facts, layers=layers, heads=count, min_weight=MIN_WEIGHT, whole_words=whole_words
    )


def _describe(view: View) -> dict[str, Any]:
    integers = np.rint(view.weights * SCALE).astype("<u2")  # little-endian, in the order of the array
    return {
        "title": view.title,
        "layers": len(view.weights),
        "sides": view.sides,
        "queries": view.queries,
        "keys": view.keys,
        "chosen": view.chosen or (),
        "weights": base64.b64encode(integers.tobytes()).decode("ascii"),
    }
