"""SentencePiece models whose pieces other tools number in a vocabulary of their own, as the tokenizer of a bundle.

OPUS-MT has a model for each side, and one vocabulary or two. Each model gets all pieces of its vocabulary, and divides
text only into those that it had before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dstransformer.data import Tokenizer
from dstransformer.errors import DataError

#: How the vocabulary writes the tag of a target language.
TAG = re.compile(r">>[^<>\s]+<<")

#: The special pieces in the order of their ids.
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")

#: The score of a piece that a model never divides text into. BPE makes the pieces of high scores first.
UNUSED_SCORE = -1e9


class Vocabulary(NamedTuple):
    """A vocabulary in the order of our ids.

    Attributes:
        rows: For each id the number of the piece in the vocabulary; None for a special piece that it lacks.
        names: The names of the pieces that follow the special ones.
    """

    rows: list[int | None]
    names: list[str]


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


def absent_pieces(model: Any, vocabulary: Vocabulary) -> list[str]:
    """The pieces that a model divides text into but its vocabulary lacks. Their text is divided into others."""
    return sorted(_divided(model).keys() - set(vocabulary.names))


def _divided(model: Any) -> dict[str, Any]:
    """The pieces that a model divides text into, by their names."""
    kinds = model.SentencePiece
    ordinary = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
    return {piece.piece: piece for piece in model.pieces if piece.type in ordinary}


def numbered_model(model: Any, vocabulary: Vocabulary, file: str) -> bytes:
    """A model that divides text as ``model`` does, and whose pieces are those of the vocabulary.

    Args:
        model: The model, as a ``ModelProto``.
        vocabulary: The pieces.
        file: The model's file, for errors.

    Raises:
        DataError: They have no piece in common.
    """
    divided = _divided(model)
    if not divided.keys() & set(vocabulary.names):
        raise DataError(f"{file} and the vocabulary have no piece in common: they are of different models")
    numbered = type(model)()
    numbered.CopyFrom(model)
    del numbered.pieces[:]
    kinds = model.SentencePiece
    for special in SPECIAL:
        kind = kinds.UNKNOWN if special == "<unk>" else kinds.CONTROL
        numbered.pieces.add(piece=special, score=0.0, type=kind)
    for piece, name in zip(unique_names(vocabulary.names), vocabulary.names, strict=True):
        if name in divided and piece == name:
            numbered.pieces.add().CopyFrom(divided[name])
        elif TAG.fullmatch(name):
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
        changed = name
        while changed in SPECIAL or not changed or (changed != name and changed in taken):
            changed += "#"
        taken.add(changed)
        unique.append(changed)
    return unique
