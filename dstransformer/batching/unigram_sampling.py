"""Subword regularisation (Kudo, 2018): pieces drawn from a unigram model, others in every epoch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dstransformer.batching.subwords import LONGEST_WORD, REMEMBERED, SubwordSampling, Word
from dstransformer.corpus import Tokenizer


class _Last(NamedTuple):
    """The pieces that the beginning of a word can end in: where each begins, its id, and the sum of the probabilities
    up to it.
    """

    begins: list[int]
    tokens: list[int]
    sums: list[float]


class UnigramSampling(SubwordSampling):
    """Draws the pieces of each word with probability proportional to P(pieces)^alpha, among all divisions of the word.

    P is the unigram model's (Kudo, 2018, section 3; there, l is infinite). See :class:`SubwordSampling`.

    Args:
        tokenizer: The unigram model of the corpus, or both.
        alpha: Smoothing: 1 draws as the model says, a smaller one evens the divisions out.
        seed: The seed of the experiment.
        longest: Most pieces of a sentence; one that would have more keeps its stored pieces. None: any number.
    """

    def __init__(self, tokenizer: Tokenizer, alpha: float, seed: int, longest: int | None) -> None:
        src = None if tokenizer.is_joint else UnigramSampling(tokenizer.src, alpha, seed, longest)
        super().__init__(tokenizer, seed, longest, src)
        self._alpha = alpha
        self._longest_piece = max(map(len, self._scores), default=0)
        self._known_lattice = lru_cache(maxsize=REMEMBERED)(self._lattice)

    def _draw(self, random: np.random.Generator) -> Iterator[float]:
        """Uniform numbers in [0, 1)."""
        while True:
            yield from random.random(1024).tolist()

    def _sample_word(self, word: Word, draws: Iterator[float]) -> Word:
        """Draw from the last piece to the first (forward filtering, backward sampling)."""
        lattice = self._known_lattice(word) if len(word) <= LONGEST_WORD else self._lattice(word)
        if lattice is None:
            return word
        pieces = []
        end = len(lattice) - 1
        while end:
            begins, tokens, sums = lattice[end]
            chosen = min(bisect_right(sums, next(draws)), len(sums) - 1) if len(sums) > 1 else 0
            pieces.append(tokens[chosen])
            end = begins[chosen]
        return tuple(reversed(pieces))

    def _lattice(self, word: Word) -> list[_Last] | None:
        """For each beginning of a word, by its number of characters, the pieces that it can end in.

        None for a word with pieces that are bytes, unknown, defined by the user or not used by the model.
        """
        if any(token not in self._text for token in word):
            return None
        text = "".join(self._text[token] for token in word)
        sums = [0.0] + [-math.inf] * len(text)  # logarithms
        lattice = [_Last([], [], [])]
        for end in range(1, len(text) + 1):
            found = [
                (begin, *self._scores[piece])
                for begin in range(max(end - self._longest_piece, 0), end)
                if (piece := text[begin:end]) in self._scores and sums[begin] > -math.inf
            ]
            weights = [sums[begin] + self._alpha * score for begin, _, score in found]
            if found:
                most = max(weights)
                sums[end] = most + math.log(sum(math.exp(weight - most) for weight in weights))
            shares = np.cumsum([math.exp(weight - sums[end]) for weight in weights]).tolist()
            lattice.append(_Last([begin for begin, _, _ in found], [token for _, token, _ in found], shares))
        return lattice
