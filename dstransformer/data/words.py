"""The words of sentences, and the pieces that spell them.

A word of a text is what whitespace separates, as ``str.split`` does. A word of stored pieces begins with a piece that
begins with ``▁``; a symbol that a user defined is a word of its own. Sampling pieces changes how a word of pieces is
spelled, and neither their number nor their order, so alignments are stored between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dstransformer.data.tokenizer import CONTROL_CHARACTERS, INVISIBLE_CHARACTERS, Tokenizer, plain_spaces

Mask = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]

WORD, _INVISIBLE, _CONTROL = re.compile(r"\S+"), re.compile(INVISIBLE_CHARACTERS), re.compile(CONTROL_CHARACTERS)

#: A word of a text in which ``plain_spaces`` has not replaced control characters yet.
_PLAIN_WORD = re.compile(r"[^\s\u0000-\u001f\u007f-\u009f]+")


def words_before(text: str, rest: str) -> int:
    """The number, from 0, that the first word of ``rest`` has in ``text + rest``."""
    is_divided = text[-1:].isspace() or rest[:1].isspace()
    return len(text.split()) - (0 if is_divided or not text else 1)


class WordBorders:
    """Finds where the words of stored pieces begin.

    Args:
        tokenizer: The model of one side.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._begins_word = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._begins_word[[token for text, (token, _) in tokenizer.scores().items() if text.startswith("▁")]] = True
        self._is_symbol = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._is_symbol[list(tokenizer.symbols.values())] = True

    def begins(self, ids: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> Mask:
        """Which pieces begin a word, ``(tokens,)``.

        Args:
            ids: Sentences laid end to end, without begin and end, ``(tokens,)``.
            lengths: Pieces of each sentence, ``(n,)``.
        """
        ends = np.cumsum(lengths, dtype=np.int64)
        is_symbol = self._is_symbol[ids]
        begins_word: Mask = self._begins_word[ids] | is_symbol
        begins_word[1:] |= is_symbol[:-1]
        begins_word[(ends - lengths)[lengths > 0]] = True
        return begins_word

    def numbers(self, ids: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> Int64:
        """The number of each piece's word in its sentence, from 0, ``(tokens,)``; arguments as for :meth:`begins`."""
        total = np.cumsum(self.begins(ids, lengths), dtype=np.int64)
        firsts = np.cumsum(lengths, dtype=np.int64) - lengths
        before = np.append(total, total[-1:])[firsts] - 1 if total.size else firsts
        numbers: Int64 = total - 1 - np.repeat(before, lengths)
        return numbers


def words_of_pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The word of its text that each piece belongs to, by its number from 0.

    Args:
        tokenizer: The model of one side.
        texts: Sentences, which may hold any whitespace and invisible characters.

    Returns:
        For each text a number per piece, in the order of ``Tokenizer.encode``. A piece that is nothing but the space
        before a word belongs to that word, a piece that spells several words to the first of them.
    """
    plain = [plain_spaces(text) for text in texts]
    return [
        _look_up(_words_in_plain_spaces(text), begins)
        for text, begins in zip(texts, tokenizer.offsets(plain), strict=True)
    ]


def words_of_output(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """As :func:`words_of_pieces`, for pieces that a search has found, which may spell their text in another way."""
    text, begins = tokenizer.decoded_offsets(ids)
    return _look_up(_following_words(text, _PLAIN_WORD), begins)


def _look_up(words: list[int], begins: Sequence[int]) -> list[int]:
    return [words[min(begin, len(words) - 1)] if words else 0 for begin in begins]


def _following_words(text: str, word: re.Pattern[str]) -> list[int]:
    """For each character the number of its word, between words that of the next one, at the end of the last one."""
    numbers: list[int] = []
    for number, found in enumerate(word.finditer(text)):
        numbers += [number] * (found.end() - len(numbers))
    return numbers + numbers[-1:] * (len(text) - len(numbers))


def _words_in_plain_spaces(text: str) -> list[int]:
    """For each character of ``plain_spaces(text)`` the number of the word of ``text``, as :func:`_following_words`."""
    numbers = _following_words(text, WORD)
    if text.isprintable() or not numbers:
        return numbers
    kept: list[int] = []
    in_run = False
    for character, number in zip(text, numbers, strict=True):
        if _INVISIBLE.match(character):
            continue
        is_control = _CONTROL.match(character) is not None
        if is_control and in_run:
            kept[-1] = number
        else:
            kept.append(number)
        in_run = is_control
    return kept
