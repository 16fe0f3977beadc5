"""Other pieces for the same sentences in every epoch: what BPE dropout and unigram sampling have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from dstransformer.batching.plan import Lengths
from dstransformer.corpus import Tokenizer
from dstransformer.corpus.reader import Int32

# Flat ids and lengths of the source, then of the target, as ``Split.gather`` returns them.
Pairs = tuple[Int32, Int32, Int32, Int32]
Word = tuple[int, ...]

#: Words whose divisions are remembered: at most some 60 MB.
REMEMBERED = 1 << 17

#: Longest word, in stored pieces, that is remembered. Text without spaces has longer ones, which never come again.
LONGEST_WORD = 12

#: Keeps the random numbers apart from those that shuffle an epoch, which are seeded by seed and epoch. Windows of an
#: epoch count from it.
_STREAM = 1


class SubwordSampling(ABC):
    """Divides the words of a micro-batch into pieces anew.

    The pieces are a function of the seed, the epoch, the window, the update and the micro-batch, and so the same in any
    layout of ranks, with one version of NumPy. (SentencePiece can sample too, but its draws differ from process to
    process, whatever the seed.) Which sentences an update holds follows from their stored pieces, so updates exceed the
    budget by as much as the sentences grow.

    Args:
        tokenizer: The model of the corpus, of one side.
        seed: The seed of the experiment.
        longest: Most pieces of a sentence; one that would have more keeps its stored pieces. None: any number.
        src: What divides the words of the source side; None if this does.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, longest: int | None, src: SubwordSampling | None) -> None:
        self._src = src or self
        self._scores = tokenizer.scores()
        self._text = {token: text for text, (token, _) in self._scores.items()}
        self._begins_word = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._begins_word[[token for token, text in self._text.items() if text.startswith("▁")]] = True
        self._is_symbol = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._is_symbol[list(tokenizer.symbols.values())] = True
        self._seed = seed
        self._longest = longest

    @abstractmethod
    def _draw(self, random: np.random.Generator) -> Iterator[Any]:
        """The random numbers that ``_sample_word`` takes."""

    @abstractmethod
    def _sample_word(self, word: Word, draws: Iterator[Any]) -> Word:
        """Divide a word, given as its stored pieces, anew."""

    def sample(self, pairs: Pairs, epoch: int, update: int, micro_batch: int, window: int = 0) -> Pairs:
        """The pairs of a micro-batch in sampled pieces.

        Args:
            pairs: Ids and lengths, as ``Split.gather`` returns them.
            epoch: The epoch.
            update: The update within the window.
            micro_batch: The micro-batch within the update.
            window: The window within the epoch.
        """
        random = np.random.default_rng((self._seed, epoch, update, micro_batch, _STREAM + window))
        src_ids, src_lengths, tgt_ids, tgt_lengths = pairs
        return *self._src._sample(src_ids, src_lengths, random), *self._sample(tgt_ids, tgt_lengths, random)

    def _sample(self, ids: Int32, lengths: Lengths, random: np.random.Generator) -> tuple[Int32, Int32]:
        ends = np.cumsum(lengths, dtype=np.int64)
        is_symbol = self._is_symbol[ids]
        begins_word = self._begins_word[ids] | is_symbol
        begins_word[1:] |= is_symbol[:-1]
        begins_word[(ends - lengths)[lengths > 0]] = True
        borders = np.append(np.flatnonzero(begins_word), len(ids))
        words_before = np.searchsorted(borders, ends)
        flat, cuts = ids.tolist(), borders.tolist()
        draws = self._draw(random)
        rows, word = [], 0
        for end, last in zip(words_before.tolist(), ends.tolist(), strict=True):
            row: list[int] = []
            first = cuts[word]
            for number in range(word, end):
                row += self._sample_word(tuple(flat[cuts[number] : cuts[number + 1]]), draws)
            rows.append(flat[first:last] if self._longest is not None and len(row) > self._longest else row)
            word = end
        sampled = np.fromiter((token for row in rows for token in row), dtype=np.int32)
        return sampled, np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
