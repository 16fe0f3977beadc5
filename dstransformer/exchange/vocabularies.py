"""SentencePiece models whose pieces other tools number in a vocabulary of their own, as the tokenizer of a bundle.

OPUS-MT has a model for each side, and one vocabulary or two. Each model gets all pieces of its vocabulary, and divides
text only into those that it had before. eole looks pieces up by their names; what its vocabulary lacks is unknown. So
each model keeps all its pieces, and those that the vocabulary lacks get the row of unknown text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dstransformer.data import Tokenizer
from dstransformer.data.tokenizer import MAX_BYTES, SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import DataError, shown
from dstransformer.io.files import read_bounded, read_error
from dstransformer.io.json_text import read_record

VOCABULARY = "vocab.json"

#: How the vocabulary writes the tag of a target language.
TAG = re.compile(r">>[^<>\s]+<<")

#: The special pieces in the order of their ids.
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")

#: The score of a piece that a model never divides text into. BPE makes the pieces of high scores first.
UNUSED_SCORE = -1e9

#: The names of special pieces that a ``vocab.json`` of eole need not state.
_DEFAULTS = {"pad_token": "<blank>", "unk_token": "<unk>", "eos_token": "</s>"}


class Rows(NamedTuple):
    """Where the pieces of a side are in the vocabulary.

    Attributes:
        numbers: For each id the number of its row; None for a special piece that the vocabulary lacks.
        absent: The ids of pieces that the vocabulary lacks; their row is that of unknown text.
    """

    numbers: list[int | None]
    absent: range


class Vocabulary(NamedTuple):
    """A vocabulary in the order of our ids.

    Attributes:
        rows: For each id the number of the piece in the vocabulary; None for a special piece that it lacks.
        names: The names of the pieces that follow the special ones.
    """

    rows: list[int | None]
    names: list[str]

    @property
    def tags(self) -> list[str]:
        """The tags of target languages."""
        return [name for name in self.names if TAG.fullmatch(name)]


def order_vocabulary(numbers: Mapping[str, int], *, pad: int, start: int, end: int, path: object) -> Vocabulary:
    """Order a vocabulary: the special pieces, then the others by their numbers.

    Args:
        numbers: The number of each piece.
        pad: The number of the padding.
        start: The number of what decoding starts with; in OPUS-MT's models the padding.
        end: The number of the end of a sentence.
        path: The file, for errors.

    Raises:
        DataError: The numbers are not those from 0 on, each once; or it has no piece for unknown text.
    """
    by_number = {number: name for name, number in numbers.items()}
    if sorted(by_number) != list(range(len(numbers))):
        raise DataError(f"{path}: the numbers of its {len(numbers):,} pieces are not 0 to {len(numbers) - 1:,}")
    if "<unk>" not in numbers:
        raise DataError(f"{path} has no piece <unk> for unknown text")
    for name, number in (("pad_token_id", pad), ("decoder_start_token_id", start), ("eos_token_id", end)):
        if number not in by_number:
            raise DataError(f"{path} has {len(numbers):,} pieces, and {name} is {number}: it is of another model")
    special = [None if pad == start else pad, numbers["<unk>"], start, end]
    others = [number for number in range(len(numbers)) if number not in (pad, *special)]
    return Vocabulary([*special, *others], [by_number[number] for number in others])


def exact_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of a model that numbers the pieces as its tokenizer does. A tag stands without its space."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    names = [piece.removeprefix("▁") if piece in tokenizer.symbols else piece for piece in pieces]
    return Vocabulary([*range(tokenizer.vocab_size)], names[len(SPECIAL) :])


def read_model(model: bytes, path: object) -> Any:
    """A SentencePiece model as a ``ModelProto``.

    Raises:
        DataError: It is none.
    """
    return Tokenizer(model, str(path)).proto()


def build_tokenizer(models: Sequence[Any], vocabularies: Sequence[Vocabulary]) -> Tokenizer:
    """The tokenizer of a bundle.

    Args:
        models: Those that divide source and target text, as ``ModelProto``.
        vocabularies: The pieces of the source and of the target.

    Raises:
        DataError: A vocabulary has no piece of its model.
    """
    source, target = (
        numbered_model(model, vocabulary, f"{side}.spm")
        for model, vocabulary, side in zip(models, vocabularies, ("source", "target"), strict=True)
    )
    return Tokenizer(target, TOKENIZER_NAME, Tokenizer(source, SRC_TOKENIZER_NAME))


def absent_pieces(model: Any, vocabulary: Vocabulary) -> list[str]:
    """The pieces that a model divides text into but its vocabulary lacks. Their text is divided into others."""
    return sorted(_divided(model).keys() - set(vocabulary.names))


def _divided(model: Any) -> dict[str, Any]:
    """The pieces that a model divides text into, by their names."""
    kinds = model.SentencePiece
    ordinary = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
    return {piece.piece: piece for piece in model.pieces if piece.type in ordinary}


def numbered_model(model: Any, vocabulary: Vocabulary, name: object) -> bytes:
    """A model that divides text as ``model`` does, and whose pieces are those of the vocabulary.

    Args:
        model: The model, as a ``ModelProto``.
        vocabulary: The pieces.
        name: The model's file, for errors.

    Raises:
        DataError: They have no piece in common.
    """
    divided = _divided(model)
    if not divided.keys() & set(vocabulary.names):
        raise DataError(f"{name} and the vocabulary have no piece in common: they are of different models")
    numbered = type(model)()
    numbered.CopyFrom(model)
    del numbered.pieces[:]
    kinds = model.SentencePiece
    for special in SPECIAL:
        kind = kinds.UNKNOWN if special == "<unk>" else kinds.CONTROL
        numbered.pieces.add(piece=special, score=0.0, type=kind)
    for piece, own in zip(unique_names(vocabulary.names), vocabulary.names, strict=True):
        if own in divided and piece == own:
            numbered.pieces.add().CopyFrom(divided[own])
        elif TAG.fullmatch(own):
            numbered.pieces.add(piece=f"▁{piece}", score=0.0, type=kinds.USER_DEFINED)
        else:
            numbered.pieces.add(piece=piece, score=UNUSED_SCORE, type=kinds.UNUSED)
    training = numbered.trainer_spec
    training.vocab_size = len(numbered.pieces)
    training.pad_id, training.unk_id, training.bos_id, training.eos_id = range(len(SPECIAL))
    training.pad_piece, training.unk_piece, training.bos_piece, training.eos_piece = SPECIAL
    content: bytes = numbered.SerializeToString()
    return content


def unique_names(names: Sequence[str]) -> list[str]:
    """The names of pieces, of which those that spell a special piece, or nothing, are changed."""
    taken = {*SPECIAL, *names}
    unique = []
    for name in names:
        own = name
        while own in SPECIAL or not own or (own != name and own in taken):
            own += "#"
        taken.add(own)
        unique.append(own)
    return unique


def check_numbers(content: object, path: object) -> dict[str, int]:
    """The content of a ``vocab.json``.

    Raises:
        DataError: It does not map pieces to numbers.
    """
    if not isinstance(content, dict) or not all(type(number) is int for number in content.values()):
        raise DataError(f"{path} does not map pieces to numbers: {shown(content)}")
    return content


class Pieces(NamedTuple):
    """A ``vocab.json`` of eole.

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
