"""Augmentation: changes the text of some training pairs before it is encoded, differently in every epoch.

The modifiers are those that OpusTrainer (Bogoychev et al., 2023) has for text without word alignment.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from random import Random
from typing import NamedTuple, TypeVar

import numpy as np

from dstransformer.config import CaseChange, Modifier, Typos
from dstransformer.data import UNK_ID, Tokenizer
from dstransformer.data.plan import Indices, Lengths, Position
from dstransformer.data.reader import Int32, Pairs
from dstransformer.io.languages import language as known

Change = Callable[[str], str]
Item = TypeVar("Item")

#: Languages in which i and I are not the same letter.
_DOTTED = ("tr", "az")

#: Rows of keys, in which the neighbours of a letter stand: QWERTY and its Russian counterpart.
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm", "йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю")
_NEIGHBOURS = {key: row[max(place - 1, 0) : place] + row[place + 1 : place + 2]
               for row in _KEYS for place, key in enumerate(row)}  # fmt: skip
_TYPOS = ("swap", "drop", "double", "neighbour")

#: First and last character of the scripts and symbols that noise is drawn from.
_NOISE = (
    (0x03B1, 0x03C1), (0x0430, 0x044F), (0x0561, 0x0586), (0x05D0, 0x05EA), (0x0641, 0x0648), (0x0915, 0x0928),
    (0x0E01, 0x0E2E), (0x10D0, 0x10F0), (0x30A2, 0x30AA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x2190, 0x21FF),
    (0x1F300, 0x1F320), (0x1F400, 0x1F43E), (0x1F600, 0x1F64F),
)  # fmt: skip
_NOISE_WORDS = 3
_NOISE_LETTERS = 5

#: Marks that end a sentence, by kind.
_END_MARKS = (".。．।۔", "!！", "?？؟")


class TextPart(NamedTuple):
    """Pairs of the training split in the same languages: their number, and the codes of source and target."""

    pairs: int
    src_lang: str
    tgt_lang: str


class Augmentation:
    """Changes the text of some sentence pairs.

    Corpora hold the pieces of their training text. SentencePiece gives the text back; a tokenizer encodes what the
    modifiers make of it. The change of a pair is a function of the seed, the epoch, the update and the pair, so it is
    the same in any layout of ranks and after a resume. Which pairs an update holds follows from their stored pieces.

    Symbols that a user defined, such as the tag of a source, are never changed. A pair keeps its stored pieces if
    they, or those of its new text, include unknown ones, if a side is or would be empty, or if it would have more
    than ``max_pieces`` pieces.

    Args:
        tokenizer: That of the corpus.
        modifiers: Applied one after the other, each with its probability (``training.augment``).
        seed: The seed of the experiment.
        parts: The parts of the training split, in order.
        max_pieces: Maximum pieces of a changed sentence.
    """

    def __init__(
        self, tokenizer: Tokenizer, modifiers: Sequence[Modifier], seed: int, parts: Sequence[TextPart], max_pieces: int
    ) -> None:
        self._tokenizers = (tokenizer.src, tokenizer)
        self._modifiers = modifiers
        self._seed = seed
        self._languages = [(part.src_lang, part.tgt_lang) for part in parts]
        self._ends = list(accumulate(part.pairs for part in parts))
        self._max_pieces = max_pieces
        symbols = {symbol.replace("▁", " ").strip() for one in self._tokenizers for symbol in one.symbols}
        by_length = sorted(filter(None, symbols), key=lambda symbol: (-len(symbol), symbol))
        self._symbols = re.compile(f"({'|'.join(map(re.escape, by_length))})") if by_length else None

    def modify(self, pairs: Pairs, rows: Indices, position: Position) -> Pairs:
        """The pieces of pairs of the update at a position, of some of them after a change of their text.

        ``rows`` are the numbers of the pairs in the training split, ``(n,)``.
        """
        drawn = [(number, *self._draw(row, position)) for number, row in enumerate(rows.tolist())]
        drawn = [(number, random, modifiers) for number, random, modifiers in drawn if modifiers]
        if not drawn:
            return pairs
        numbers = [number for number, _, _ in drawn]
        stored = [_take(*side, numbers) for side in pairs.sides]
        texts = [tokenizer.decode(side) for tokenizer, side in zip(self._tokenizers, stored, strict=True)]
        changed = [
            self._change(src, tgt, random, modifiers, self._languages[bisect(self._ends, int(rows[number]))])
            for src, tgt, (number, random, modifiers) in zip(*texts, drawn, strict=True)
        ]
        new_texts = list(zip(*changed, strict=True))
        encoded = [
            tokenizer.encode(side, threads=1) for tokenizer, side in zip(self._tokenizers, new_texts, strict=True)
        ]
        fits = [
            self._fits(src, new_src) and self._fits(tgt, new_tgt)
            for src, tgt, new_src, new_tgt in zip(*stored, *encoded, strict=True)
        ]
        columns: list[Int32] = []
        for side, old, new, pieces in zip(pairs.sides, texts, new_texts, encoded, strict=True):
            replaced = [n for n in range(len(drawn)) if fits[n] and old[n] != new[n]]
            columns += _replace(*side, {numbers[n]: pieces[n] for n in replaced})
        return Pairs(*columns)

    def _draw(self, row: int, position: Position) -> tuple[Random, list[Modifier]]:
        """The random numbers of a pair, and the modifiers that they choose."""
        seed = f"{self._seed} {position.epoch} {position.update} {row}"
        random = Random(f"{seed} {position.window}" if position.window else seed)
        return random, [modifier for modifier in self._modifiers if random.random() < modifier.probability]

    def _change(
        self, src: str, tgt: str, random: Random, modifiers: Sequence[Modifier], languages: tuple[str, str]
    ) -> tuple[str, str]:
        for modifier in modifiers:
            if isinstance(modifier, CaseChange):
                case = _CASES[modifier.modifier]
                src = self._outside_symbols(src, partial(case, language=languages[0]))
                if not modifier.source_only:
                    tgt = self._outside_symbols(tgt, partial(case, language=languages[1]))
            elif isinstance(modifier, Typos):
                src = self._outside_symbols(src, partial(mistype, rate=modifier.rate, random=random))
            elif modifier.modifier == "noise":
                noise = make_noise(random)
                src, tgt = f"{src} {noise}", f"{tgt} {noise}"
            else:
                src, tgt = without_end_marks(src, tgt)
        return src, tgt

    def _outside_symbols(self, text: str, change: Change) -> str:
        if self._symbols is None:
            return change(text)
        return "".join(part if n % 2 else change(part) for n, part in enumerate(self._symbols.split(text)))

    def _fits(self, before: Sequence[int], after: Sequence[int]) -> bool:
        """Whether a sentence may change its pieces."""
        return bool(before) and 0 < len(after) <= self._max_pieces and UNK_ID not in before and UNK_ID not in after


def upper(text: str, language: str) -> str:
    """The text in upper case."""
    return (text.replace("i", "İ") if _is_dotted(language) else text).upper()


def lower(text: str, language: str) -> str:
    """The text in lower case."""
    return (text.replace("İ", "i").replace("I", "ı") if _is_dotted(language) else text).lower()


def title(text: str, language: str) -> str:
    """The text with the first letter of each word in upper case, and its other letters in lower case."""

    def capitalise(word: re.Match[str]) -> str:
        first = next((place for place, letter in enumerate(word[0]) if letter.isalnum()), 0) + 1
        return upper(word[0][:first], language) + lower(word[0][first:], language)

    return re.sub(r"\S+", capitalise, text)


_CASES: Mapping[str, Callable[..., str]] = {"upper": upper, "lower": lower, "title": title}


def mistype(text: str, rate: float, random: Random) -> str:
    """The text with typing errors in a share ``rate`` of its letters.

    A letter changes places with the next, is left out, doubled, or replaced by a neighbour on the keyboard. If there is
    no letter to change places with, and if the keyboard is unknown, it is doubled.
    """
    typed = []
    place = 0
    while place < len(text):
        letter, following = text[place], text[place + 1 : place + 2]
        place += 1
        typo = _pick(_TYPOS, random) if letter.isalpha() and random.random() < rate else None
        if typo is None:
            typed.append(letter)
        elif typo == "swap" and following.isalpha():
            typed.append(following + letter)
            place += 1
        elif typo == "neighbour" and (near := _NEIGHBOURS.get(letter.lower())):
            neighbour = _pick(near, random)
            typed.append(neighbour.upper() if letter.isupper() else neighbour)
        elif typo != "drop":
            typed.append(2 * letter)
    return "".join(typed)


def make_noise(random: Random) -> str:
    """Up to three words of up to five characters, each of one script or kind of symbol, to be copied."""
    words = []
    for _ in range(1 + int(_NOISE_WORDS * random.random())):
        first, last = _pick(_NOISE, random)
        letters = 1 + int(_NOISE_LETTERS * random.random())
        words.append("".join(chr(first + int((last - first + 1) * random.random())) for _ in range(letters)))
    return " ".join(words)


def without_end_marks(src: str, tgt: str) -> tuple[str, str]:
    """Both sides without the mark that ends them, if it is of the same kind."""
    for marks in _END_MARKS:
        if src.endswith(tuple(marks)) and tgt.endswith(tuple(marks)):
            return src.rstrip(marks).rstrip(), tgt.rstrip(marks).rstrip()
    return src, tgt


def describe_augmentation(modifiers: Sequence[Modifier]) -> str:
    """The modifiers in a line: ``upper 0.05, typos 0.05 (rate 0.1)``."""
    described = []
    for modifier in modifiers:
        settings = modifier.model_dump(exclude={"modifier", "probability"}, exclude_defaults=True)
        more = ", ".join(f"{name} {value}" for name, value in settings.items())
        described.append(f"{modifier.modifier} {modifier.probability:g}" + (f" ({more})" if more else ""))
    return ", ".join(described)


def _is_dotted(language: str) -> bool:
    return (known(language).tag or "").partition("-")[0] in _DOTTED


def _pick(options: Sequence[Item], random: Random) -> Item:
    # Of its methods, Python promises only of random() that it gives the same numbers in later versions.
    return options[int(len(options) * random.random())]


def _take(ids: Int32, lengths: Lengths, places: Sequence[int]) -> list[list[int]]:
    """The ids of some sentences."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return [ids[ends[place] - lengths[place] : ends[place]].tolist() for place in places]


def _replace(ids: Int32, lengths: Lengths, rows: Mapping[int, Sequence[int]]) -> tuple[Int32, Int32]:
    """Put other ids in the places of some sentences, given in ascending order."""
    ends = np.cumsum(lengths, dtype=np.int64)
    parts, last, new_lengths = [], 0, lengths.copy()
    for place, row in rows.items():
        parts += [ids[last : ends[place] - lengths[place]], np.asarray(row, dtype=np.int32)]
        last, new_lengths[place] = int(ends[place]), len(row)
    return np.concatenate([*parts, ids[last:]], dtype=np.int32), new_lengths
