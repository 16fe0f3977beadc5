"""The vocabulary of a model of eole and its SentencePiece models, as the tokenizer of a bundle.

eole looks pieces up by their names; what its vocabulary lacks is unknown. So each SentencePiece model keeps all its
pieces, and those that the vocabulary lacks get the row of unknown text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dstransformer.data import Tokenizer
from dstransformer.data.tokenizer import MAX_BYTES, SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import DataError, shown
from dstransformer.exchange.eole_weights import Rows
from dstransformer.exchange.marian_tokenizer import Vocabulary, absent_pieces, numbered_model, read_model
from dstransformer.io.files import read_bounded, read_error
from dstransformer.io.json_text import read_record

VOCABULARY = "vocab.json"

_DEFAULTS = {"pad_token": "<blank>", "unk_token": "<unk>", "eos_token": "</s>"}


class Pieces(NamedTuple):
    """A ``vocab.json``.

    Attributes:
        src: The source pieces in the order of their rows.
        tgt: The target pieces.
        special: The names of padding, unknown text, begin and end of a sentence.
    """

    src: list[str]
    tgt: list[str]
    special: list[str]


def read_pieces(path: Path, advice: str) -> Pieces:
    """Read a ``vocab.json``.

    Raises:
        DataError: It is missing, damaged, or lacks a special piece.
    """
    content = read_record(path, dict, advice=advice)
    sides = []
    for side in ("src", "tgt"):
        names = content.get(side)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{path}: {side} is not a list of pieces; {advice}")
        if len(set(names)) < len(names):
            repeated = next(name for place, name in enumerate(names) if name in names[:place])
            raise DataError(f"{path}: {side} has the piece {shown(repeated)} twice; {advice}")
        sides.append(names)
    stated = content.get("specials")
    named = _DEFAULTS | (stated if isinstance(stated, dict) else {})
    pad, unk, end = (named[name] for name in _DEFAULTS)
    start = content.get("decoder_start_token", "<s>")
    for name, piece, among in (
        ("unk_token", unk, sides[0]),
        ("unk_token", unk, sides[1]),
        ("decoder_start_token", start, sides[1]),
        ("eos_token", end, sides[1]),
    ):
        if not isinstance(piece, str) or piece not in among:
            raise DataError(f"{path}: {name} is {shown(piece)}, which is not a piece")
    if not isinstance(pad, str):
        raise DataError(f"{path}: pad_token is {shown(pad)}, which is not a piece")
    if len({unk, start, end}) < 3 or pad in (unk, end):
        raise DataError(f"{path}: its decoder_start_token {shown(start)}, or another special piece, has two roles")
    return Pieces(sides[0], sides[1], [pad, unk, start, end])


def open_tokenizer(pieces: Pieces, models: Sequence[Path]) -> tuple[Tokenizer, tuple[Rows, Rows], list[str]]:
    """The tokenizer, the rows of source and target, and the pieces of the models that the vocabulary lacks.

    Args:
        pieces: The vocabulary.
        models: The SentencePiece models of source and target.

    Raises:
        DataError: A model is missing, is none, or has nothing in common with the vocabulary.
    """
    contents = [_read(path) for path in models]
    protos = [read_model(content, path) for content, path in zip(contents, models, strict=True)]
    if pieces.src == pieces.tgt:
        vocabulary, rows = _order(pieces.src, pieces.special, dict(zip(models, protos, strict=True)))
        vocabularies, both = [vocabulary] * 2, (rows, rows)
    else:
        found = [
            _order(names, pieces.special, {path: proto})
            for names, path, proto in zip((pieces.src, pieces.tgt), models, protos, strict=True)
        ]
        vocabularies, both = [vocabulary for vocabulary, _ in found], (found[0][1], found[1][1])
    numbered = [numbered_model(*one) for one in zip(protos, vocabularies, models, strict=True)]
    absent = [vocabularies[side].names[number - 4] for side in (0, 1) for number in both[side].absent]
    if numbered[0] == numbered[1]:
        return Tokenizer(numbered[1], TOKENIZER_NAME), both, list(dict.fromkeys(absent))
    src = Tokenizer(numbered[0], SRC_TOKENIZER_NAME)
    return Tokenizer(numbered[1], TOKENIZER_NAME, src), both, list(dict.fromkeys(absent))


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise read_error(path, error) from None


def _order(names: Sequence[str], special: Sequence[str], models: Mapping[Path, Any]) -> tuple[Vocabulary, Rows]:
    """A vocabulary in the order of our ids, what it lacks of its models last, and the rows of the ids.

    Raises:
        DataError: Most of its pieces are of none of the models.
    """
    numbers: Mapping[str, int] = {name: number for number, name in enumerate(names)}
    pad, unk, start, end = (numbers.get(name) for name in special)
    first = [None if pad == start else pad, unk, start, end]
    others = [name for name in names if numbers[name] not in (pad, *first)]
    known = Vocabulary(first, others)
    absent = list(dict.fromkeys(piece for model in models.values() for piece in absent_pieces(model, known)))
    all_pieces = {piece for model in models.values() for piece in absent_pieces(model, Vocabulary([], []))}
    if 2 * (common := len(all_pieces) - len(absent)) < len(others):
        where = " and ".join(dict.fromkeys(map(str, models)))
        raise DataError(
            f"{VOCABULARY} has {len(others):,} pieces, of which {where} has {common:,}: it is of another vocabulary"
        )
    rows = [*first, *(numbers[name] for name in others), *[unk] * len(absent)]
    return Vocabulary(rows, [*others, *absent]), Rows(rows, range(len(rows) - len(absent), len(rows)))
