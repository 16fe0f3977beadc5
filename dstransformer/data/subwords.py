"""Sampling the subwords of the training text: BPE dropout (Provilkov et al., 2020) and a unigram model (Kudo, 2018).

Every epoch segments the sentences again.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from dstransformer.data import Tokenizer
from dstransformer.data.alignment import WordBorders
from dstransformer.data.plan import Lengths, Position
from dstransformer.data.reader import Int32, Pairs

Word = tuple[int, ...]

#: Maximum words whose segmentations are cached: about 60 MB.
MAX_CACHED_WORDS = 1 << 17

#: Maximum stored pieces of a word that is cached. Text without spaces has longer words, which rarely repeat.
MAX_CACHED_PIECES = 12

#: Separates the random numbers from those that shuffle an epoch, which are seeded by seed and epoch. The number of the
#: window is added.
_STREAM = 1


class SubwordSampling(ABC):
    """Samples the segmentation of each word of a micro-batch.

    The pieces are a function of the seed, the epoch, the window, the update and the micro-batch, and so the same in any
    layout of ranks, with one version of NumPy. (SentencePiece can sample too, but its draws differ from process to
    process, whatever the seed.) Which sentences an update holds follows from their stored pieces, so updates exceed the
    budget by as much as the sentences grow.

    Args:
        tokenizer: The model of the corpus, of one side.
        seed: The seed of the experiment.
        max_pieces: Maximum pieces of a sentence; one that would have more keeps its stored pieces. None: any number.
        src: Samples the source side; None if this object samples both.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, max_pieces: int | None, src: SubwordSampling | None) -> None:
        self._src = src or self
        self._scores = tokenizer.scores()
        self._text = {token: text for text, (token, _) in self._scores.items()}
        self._borders = WordBorders(tokenizer)
        self._seed = seed
        self._max_pieces = max_pieces

    @abstractmethod
    def _draw(self, random: np.random.Generator) -> Iterator[Any]:
        """The random numbers that ``_sample_word`` uses."""

    @abstractmethod
    def _sample_word(self, word: Word, draws: Iterator[Any]) -> Word:
        """Sample the pieces of a word, given as its stored pieces."""

    def sample(self, pairs: Pairs, position: Position, micro_batch: int) -> Pairs:
        """The pairs in sampled pieces; they are a micro-batch, given by its number within the update at a position."""
        key = (self._seed, position.epoch, position.update, micro_batch, _STREAM + position.window)
        random = np.random.default_rng(key)
        src, tgt = pairs.sides
        return Pairs(*self._src._sample(*src, random), *self._sample(*tgt, random))

    def _sample(self, ids: Int32, lengths: Lengths, random: np.random.Generator) -> tuple[Int32, Int32]:
        ends = np.cumsum(lengths, dtype=np.int64)
        borders = np.append(np.flatnonzero(self._borders.begins(ids, lengths)), len(ids))
        words_before = np.searchsorted(borders, ends)
        flat, cuts = ids.tolist(), borders.tolist()
        draws = self._draw(random)
        rows, word = [], 0
        for end, last in zip(words_before.tolist(), ends.tolist(), strict=True):
            row: list[int] = []
            first = cuts[word]
            for number in range(word, end):
                row += self._sample_word(tuple(flat[cuts[number] : cuts[number + 1]]), draws)
            rows.append(flat[first:last] if self._max_pieces is not None and len(row) > self._max_pieces else row)
            word = end
        sampled = np.fromiter((token for row in rows for token in row), dtype=np.int32)
        return sampled, np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))


class BpeDropout(SubwordSampling):
    """Skips each merge of the BPE model, or of both models, with some probability. See :class:`SubwordSampling`."""

    def __init__(self, tokenizer: Tokenizer, probability: float, seed: int, max_pieces: int | None) -> None:
        src = None if tokenizer.is_joint else BpeDropout(tokenizer.src, probability, seed, max_pieces)
        super().__init__(tokenizer, seed, max_pieces, src)
        self._probability = probability
        # By word and dropped merges.
        self._segment = lru_cache(maxsize=MAX_CACHED_WORDS)(self._segment_checked)

    def _draw(self, random: np.random.Generator) -> Iterator[int]:
        """The numbers of merges from a dropped one to the next."""
        while True:
            yield from random.geometric(self._probability, size=1024).tolist()

    def _sample_word(self, word: Word, draws: Iterator[int]) -> Word:
        if len(word) > MAX_CACHED_PIECES:
            return self._sample_long_word(word, draws)
        dropped = 0
        pieces, possible = self._segment(word, dropped)
        following = next(draws) - 1
        while following < possible:
            dropped |= 1 << following
            pieces, possible = self._segment(word, dropped)
            following += next(draws)
        return pieces

    def _sample_long_word(self, word: Word, gaps: Iterator[int]) -> Word:
        following = next(gaps) - 1

        def is_dropped(merge: int) -> bool:
            nonlocal following
            if merge < following:
                return False
            following += next(gaps)
            return True

        if self._segment_anew(word, lambda _: False)[0] != word:
            return word
        return self._segment_anew(word, is_dropped)[0]

    def _segment_checked(self, word: Word, dropped: int) -> tuple[Word, int]:
        """Segment a word by BPE.

        Args:
            word: The stored pieces. They are the result, and no merge is possible, if this program cannot reproduce
                them: with pieces that are bytes, unknown, defined by the user or not used by the model.
            dropped: Its bit ``n`` says whether to drop the ``n``-th merge that is possible.

        Returns:
            The pieces, and the number of merges that were possible on the way.
        """
        if not dropped:
            pieces, possible = self._segment_anew(word, lambda _: False)
            return (pieces, possible) if pieces == word else (word, 0)
        return self._segment_anew(word, lambda merge: bool(dropped >> merge & 1))

    def _segment_anew(self, word: Word, is_dropped: Callable[[int], bool]) -> tuple[Word, int]:
        """Merge the characters of a word, dropping some merges."""
        if any(token not in self._text for token in word):
            return word, 0
        characters = "".join(self._text[token] for token in word)
        if any(character not in self._scores for character in characters):
            return word, 0
        pieces, possible = merge_characters(characters, self._scores, is_dropped)
        return tuple(self._scores[piece][0] for piece in pieces), possible


def merge_characters(
    word: str, scores: Mapping[str, tuple[int, float]], is_dropped: Callable[[int], bool] = lambda _: False
) -> tuple[list[str], int]:
    """Merge the characters of a word as SentencePiece does, dropping some merges.

    Merges come in the order of their scores, those of equal scores from left to right. A dropped one is not
    tried again until a neighbour has merged.

    Args:
        word: Its text.
        scores: Id and score of every piece, see :meth:`Tokenizer.scores`.
        is_dropped: Whether to drop the merge of this number, counted from 0 in the order of the merges.

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
        if is_dropped(possible - 1):
            continue
        symbols[left], symbols[right] = text, ""
        after[left] = after[right]
        if after[right] < len(symbols):
            before[after[right]] = left
        consider(before[left], left)
        consider(left, after[left])
    return [symbol for symbol in symbols if symbol], possible


#: The pieces that the beginning of a word can end in: where each begins, its id, the sum of the probabilities up to it.
_Last = tuple[list[int], list[int], list[float]]


class UnigramSampling(SubwordSampling):
    """Draws the pieces of each word with probability proportional to P(pieces)^alpha, among all its segmentations.

    P is the unigram model's (Kudo, 2018, section 3; there, l is infinite): an alpha of 1 draws as the model says, a
    smaller one is closer to uniform. See :class:`SubwordSampling`.
    """

    def __init__(self, tokenizer: Tokenizer, alpha: float, seed: int, max_pieces: int | None) -> None:
        src = None if tokenizer.is_joint else UnigramSampling(tokenizer.src, alpha, seed, max_pieces)
        super().__init__(tokenizer, seed, max_pieces, src)
        self._alpha = alpha
        self._longest_piece = max(map(len, self._scores), default=0)
        self._known_lattice = lru_cache(maxsize=MAX_CACHED_WORDS)(self._lattice)

    def _draw(self, random: np.random.Generator) -> Iterator[float]:
        """Uniform numbers in [0, 1)."""
        while True:
            yield from random.random(1024).tolist()

    def _sample_word(self, word: Word, draws: Iterator[float]) -> Word:
        """Draw from the last piece to the first (forward filtering, backward sampling)."""
        lattice = self._known_lattice(word) if len(word) <= MAX_CACHED_PIECES else self._lattice(word)
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
        lattice: list[_Last] = [([], [], [])]
        for end in range(1, len(text) + 1):
            last_pieces = [
                (begin, *self._scores[piece])
                for begin in range(max(end - self._longest_piece, 0), end)
                if (piece := text[begin:end]) in self._scores and sums[begin] > -math.inf
            ]
            weights = [sums[begin] + self._alpha * score for begin, _, score in last_pieces]
            if last_pieces:
                highest = max(weights)
                sums[end] = highest + math.log(sum(math.exp(weight - highest) for weight in weights))
            shares = np.cumsum([math.exp(weight - sums[end]) for weight in weights]).tolist()
            lattice.append(([begin for begin, _, _ in last_pieces], [token for _, token, _ in last_pieces], shares))
        return lattice
