"""The data of a picture of attention: words, weights, which lines to draw, and the colours of heads."""

from __future__ import annotations

import colorsys
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstransformer.data import EOS_ID, Tokenizer

Weights = npt.NDArray[np.float32]

#: The minimum weight whose line is drawn; fainter lines are invisible.
MIN_WEIGHT = 0.02

_COLOURS = ("#1f6fd6", "#e8590c", "#2b8a3e", "#c2255c", "#7048e8", "#0b9a9a", "#a0660a", "#74808c")
_GOLDEN_RATIO = 0.618034
_SPACE = "▁"
_BYTE = re.compile("<0x([0-7][0-9A-F])>")  # of an ASCII letter


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
        return {
            "encoder": "encoder self-attention",
            "decoder": "decoder self-attention",
            "cross": "encoder-decoder attention",
        }[self.kind]

    @property
    def sides(self) -> tuple[str, str]:
        """Labels of the queries and the keys."""
        return {
            "encoder": ("source word", "attends to"),
            "decoder": ("predicted word", "attends to (earlier words)"),
            "cross": ("predicted word", "attends to (source words)"),
        }[self.kind]


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
    spaced = [0, *(i for i in range(1, len(pieces)) if pieces[i].startswith(_SPACE))]
    spaced += [j for i, piece in enumerate(pieces) if piece in ("<s>", "</s>") for j in (i, i + 1)]
    starts = {start for start in spaced if start < len(pieces)}
    for start, end in zip(sorted(starts), [*sorted(starts)[1:], len(pieces)], strict=True):
        first, last = start + (pieces[start] == _SPACE), end  # a lone space belongs to the next word
        while first < last and _is_punctuation(pieces[first]):
            first += 1
            starts.add(first)
        while last > first and _is_punctuation(pieces[last - 1]):
            last -= 1
            starts.add(last)
    return {start for start in starts if start < len(pieces)}


def _is_punctuation(piece: str) -> bool:
    byte = _BYTE.fullmatch(piece)
    text = chr(int(byte[1], 16)) if byte else piece.removeprefix(_SPACE)
    return bool(text) and all(unicodedata.category(letter)[0] in "PS" for letter in text)


def _spell(tokenizer: Tokenizer, ids: Sequence[int], pieces: Sequence[str]) -> str:
    """The text of a word; the names of special pieces, which have no text."""
    if min(ids) <= EOS_ID:
        return "".join(pieces).replace(_SPACE, "")
    return tokenizer.decode([ids])[0].strip() or pieces[0]
