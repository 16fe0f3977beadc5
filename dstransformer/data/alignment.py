"""Word alignments: links between the words of a pair, their error rate, and the pieces that spell the words.

Links are written in the Pharaoh format: ``0-0 1-2`` links word 0 of both sides, and word 1 to word 2 of the target. A
reference, which others are measured by, also has *possible* links, ``1p3``, that are no error (Och and Ney, 2003).

A word of a text is what whitespace separates, as ``str.split`` does. A word of stored pieces begins with a piece that
begins with ``▁``; a symbol that a user defined is a word of its own. Sampling pieces changes how a word of pieces is
spelled, and neither their number nor their order, so alignments are stored between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dstransformer.data.tokenizer import CONTROL_CHARACTERS, INVISIBLE_CHARACTERS, Tokenizer, plain_spaces
from dstransformer.errors import DataError, UserError, shown
from dstransformer.io.text import is_same_file, iter_file_pairs, iter_lines

#: A link: the number of a source word and that of a target word, from 0.
Link = tuple[int, int]

_LINK = re.compile(r"(\d{1,9})([-p?])(\d{1,9})", re.ASCII)


class ReferenceAlignment(NamedTuple):
    """The right links of a pair.

    Attributes:
        sure: Links that an alignment must have, sorted.
        possible: Other links, which it may have, sorted.
    """

    sure: tuple[Link, ...]
    possible: tuple[Link, ...]


def parse_links(line: str, words: tuple[int, int], where: str) -> list[Link]:
    """The links of a line, sorted, each once.

    Args:
        line: Links separated by whitespace; none in an empty line.
        words: The words of the source and of the target sentence.
        where: The file and the line, for errors.

    Raises:
        DataError: Something is not a link, or names a word that its sentence does not have. The message says in which
            column, from 1.
    """
    links, possible = _parse(line, words, where)
    if possible:
        src, tgt = min(possible)
        raise DataError(
            f"{where}: {src}p{tgt} is a possible link, which only a reference has: write {src}-{tgt}, or leave it out"
        )
    return sorted(links)


def parse_reference(line: str, words: tuple[int, int], where: str) -> ReferenceAlignment:
    """The links of a line of a reference: sure ones such as ``0-0``, possible ones such as ``1p3`` or ``1?3``.

    Arguments and errors are those of ``parse_links``. A link that is given as both is sure.
    """
    sure, possible = _parse(line, words, where)
    return ReferenceAlignment(tuple(sorted(sure)), tuple(sorted(possible - sure)))


def _parse(line: str, words: tuple[int, int], where: str) -> tuple[set[Link], set[Link]]:
    links: tuple[set[Link], set[Link]] = set(), set()
    for word in re.finditer(r"\S+", line):
        link = _LINK.fullmatch(word[0])
        column = f"{where}, column {word.start() + 1}"
        if link is None:
            raise DataError(f"{column}: {shown(word[0])} is not a link between two words, such as 0-0")
        numbers = int(link[1]), int(link[3])
        for side, number, count in zip(("source", "target"), numbers, words, strict=True):
            if number >= count:
                has = f"its words are 0 to {count - 1}" if count else "it has no word"
                raise DataError(f"{column}: {word[0]} names word {number} of the {side} sentence, but {has}")
        links[link[2] != "-"].add(numbers)
    return links


def format_links(links: Iterable[Link]) -> str:
    """Links on a line, in the order of the source words."""
    return " ".join(f"{src}-{tgt}" for src, tgt in sorted(links))


def read_links(line: str) -> list[Link]:
    """The links of a line that :func:`format_links` has written."""
    return [(int(src), int(tgt)) for src, _, tgt in (link.partition("-") for link in line.split())]


# Agreement with a reference


@dataclass
class AlignmentScore:
    """How well alignments agree with a reference (Och and Ney, 2003): counts over all pairs, and figures from them.

    Attributes:
        pairs: Pairs of sentences.
        links: Links found, *A*.
        sure: Sure links of the reference, *S*.
        found_sure: Links found that are sure.
        found_possible: Links found that are sure or possible, *A* and *P*.
    """

    pairs: int = 0
    links: int = 0
    sure: int = 0
    found_sure: int = 0
    found_possible: int = 0

    @property
    def aer(self) -> float | None:
        """The alignment error rate, from 0 (best) to 1; None without any link."""
        total = self.links + self.sure
        return 1 - (self.found_sure + self.found_possible) / total if total else None

    @property
    def precision(self) -> float | None:
        """The share of the links found that are sure or possible; None if none was found."""
        return self.found_possible / self.links if self.links else None

    @property
    def recall(self) -> float | None:
        """The share of the sure links that were found; None if there are none."""
        return self.found_sure / self.sure if self.sure else None

    def record(self) -> dict[str, int | float | None]:
        """The figures, rounded, and the counts behind them."""
        figures = {"aer": self.aer, "precision": self.precision, "recall": self.recall}
        rounded = {name: value if value is None else round(value, 4) for name, value in figures.items()}
        return rounded | {"pairs": self.pairs, "links": self.links, "sure": self.sure}


def score_alignments(alignments: Iterable[Sequence[Link]], references: Sequence[ReferenceAlignment]) -> AlignmentScore:
    """Compare the links of pairs with their references, one by one.

    Raises:
        ValueError: The numbers of pairs differ.
    """
    score = AlignmentScore()
    for links, reference in zip(alignments, references, strict=True):
        found, sure = set(links), set(reference.sure)
        score.pairs += 1
        score.links += len(found)
        score.sure += len(sure)
        score.found_sure += len(found & sure)
        score.found_possible += len(found & (sure | set(reference.possible)))
    return score


def read_references(path: str, src: str, tgt: str) -> list[ReferenceAlignment]:
    """Read the reference alignments of the pairs of two text files.

    Args:
        path: A line for each pair: sure links such as ``0-0``, possible ones such as ``1p3`` or ``1?3``, of
            whitespace-separated words, from 0.
        src: Source text.
        tgt: Its translation.

    Raises:
        UserError: The reference is one of the texts.
        DataError: A file cannot be read, a line does not fit its pair, or the numbers of lines differ.
    """
    if is_same_file(path, src) or is_same_file(path, tgt):
        raise UserError(f"--reference {path} is one of the texts: name the file of their right links")
    references = []
    for number, (line, pair) in enumerate(zip_longest(iter_lines(path), iter_file_pairs(src, tgt)), 1):
        if line is None or pair is None:
            raise DataError(
                f"{path} has {'fewer' if line is None else 'more'} lines than {src}: line n must align pair n"
            )
        references.append(parse_reference(line, (len(pair[0].split()), len(pair[1].split())), f"{path}, line {number}"))
    return references


# Words and pieces

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
    if not numbers or plain_spaces(text) == text:
        return numbers
    visible = [(sign, number) for sign, number in zip(text, numbers, strict=True) if not _INVISIBLE.match(sign)]
    kept: list[int] = []
    for is_control, run in groupby(visible, key=lambda pair: _CONTROL.match(pair[0]) is not None):
        run_numbers = [number for _, number in run]
        kept += run_numbers[-1:] if is_control else run_numbers  # one space stands for a run of control characters
    return kept
