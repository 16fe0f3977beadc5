"""BPE dropout (Provilkov et al., 2020): other pieces for the same sentences in every epoch."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import numpy as np

from dstransformer.batching.subwords import LONGEST_WORD, REMEMBERED, SubwordSampling, Word
from dstransformer.corpus import Tokenizer


class BpeDropout(SubwordSampling):
    """Leaves out each merge with some probability. See :class:`SubwordSampling`.

    Args:
        tokenizer: The BPE model of the corpus, or both.
        probability: That of leaving a merge out.
        seed: The seed of the experiment.
        longest: Most pieces of a sentence; one that would have more keeps its stored pieces. None: any number.
    """

    def __init__(self, tokenizer: Tokenizer, probability: float, seed: int, longest: int | None) -> None:
        src = None if tokenizer.is_joint else BpeDropout(tokenizer.src, probability, seed, longest)
        super().__init__(tokenizer, seed, longest, src)
        self._probability = probability
        # Words, each with the merges that are left out.
        self._divide = lru_cache(maxsize=REMEMBERED)(self._divide_checked)

    def _draw(self, random: np.random.Generator) -> Iterator[int]:
        """The numbers of merges from one that is left out to the next."""
        while True:
            yield from random.geometric(self._probability, size=1024).tolist()

    def _sample_word(self, word: Word, draws: Iterator[int]) -> Word:
        if len(word) > LONGEST_WORD:
            return self._sample_long_word(word, draws)
        left_out = 0
        pieces, possible = self._divide(word, left_out)
        following = next(draws) - 1
        while following < possible:
            left_out |= 1 << following
            pieces, possible = self._divide(word, left_out)
            following += next(draws)
        return pieces

    def _sample_long_word(self, word: Word, gaps: Iterator[int]) -> Word:
        following = next(gaps) - 1

        def is_left_out(merge: int) -> bool:
            nonlocal following
            if merge < following:
                return False
            following += next(gaps)
            return True

        if self._divide_anew(word, lambda _: False)[0] != word:
            return word
        return self._divide_anew(word, is_left_out)[0]

    def _divide_checked(self, word: Word, left_out: int) -> tuple[Word, int]:
        """Divide a word by BPE.

        Args:
            word: The stored pieces. They are the result, and no merge is possible, if this program cannot reproduce
                them: with pieces that are bytes, unknown, defined by the user or not used by the model.
            left_out: Its bit ``n`` says whether to leave out the ``n``-th merge that is possible.

        Returns:
            The pieces, and the number of merges that were possible on the way.
        """
        if not left_out:
            pieces, possible = self._divide_anew(word, lambda _: False)
            return (pieces, possible) if pieces == word else (word, 0)
        return self._divide_anew(word, lambda merge: bool(left_out >> merge & 1))

    def _divide_anew(self, word: Word, is_left_out: Callable[[int], bool]) -> tuple[Word, int]:
        """Merge the characters of a word, leaving out some merges."""
        if any(token not in self._text for token in word):
            return word, 0
        characters = "".join(self._text[token] for token in word)
        if any(character not in self._scores for character in characters):
            return word, 0
        pieces, possible = merge_characters(characters, self._scores, is_left_out)
        return tuple(self._scores[piece][0] for piece in pieces), possible


def merge_characters(
    word: str, scores: Mapping[str, tuple[int, float]], is_left_out: Callable[[int], bool] = lambda _: False
) -> tuple[list[str], int]:
    """Merge the characters of a word as SentencePiece does, leaving out some merges.

    Merges come in the order of their scores, those of equal scores from left to right. One that is left out is gone
    until a neighbour has merged.

    Args:
        word: Its text.
        scores: Id and score of every piece, see :meth:`Tokenizer.scores`.
        is_left_out: Whether to leave out the merge of this number, counted from 0 in the order of the merges.

    Returns:
        The pieces, and the number of merges that were possible on the way.
    """
    symbols = list(word)
    agenda: list[tuple[float, int, int, str]] = []  # score, left and right symbol, their text
    before, after = list(range(-1, len(symbols) - 1)), list(range(1, len(symbols) + 1))

    def consider(left: int, right: int) -> None:
        if left >= 0 and right < len(symbols) and (text := symbols[left] + symbols[right]) in scores:
            heapq.heappush(agenda, (-scores[text][1], left, right, text))

    for left in range(len(symbols) - 1):
        consider(left, left + 1)
    possible = 0
    while agenda:
        _, left, right, text = heapq.heappop(agenda)
        if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != text:
            continue  # one of the two has merged with its other neighbour
        possible += 1
        if is_left_out(possible - 1):
            continue
        symbols[left], symbols[right] = text, ""
        after[left] = after[right]
        if after[right] < len(symbols):
            before[after[right]] = left
        consider(before[left], left)
        consider(left, after[left])
    return [symbol for symbol in symbols if symbol], possible
