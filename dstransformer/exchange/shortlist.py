"""A shortlist of target pieces for each source piece: the vocabulary map of CTranslate2, a lexical table for Marian.

With one, the product before the softmax has rows for the pieces that the source may be translated to, instead of for
all. The pieces come from lexical probabilities, IBM's model 1 (Brown et al., 1993, section 4.1), of a corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dstransformer.data import EOS_ID, Corpus, Tokenizer
from dstransformer.data.reader import Split
from dstransformer.errors import DataError

#: Pieces of each kind, if nothing else is asked for.
DEFAULT_SIZE = 100

#: Passes of expectation and maximisation.
ITERATIONS = 5

#: Pairs of a corpus that are read, evenly spaced.
MAX_PAIRS = 500_000

#: Pairs that are computed at once.
CHUNK_PAIRS = 20_000

Int64 = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ShortlistOptions:
    """What a shortlist is built from.

    Attributes:
        corpus: The folder of the corpus.
        best: See :func:`build_shortlist`.
        frequent: See :func:`build_shortlist`.
    """

    corpus: Path
    best: int
    frequent: int

    def build(self, tokenizer: Tokenizer) -> str:
        """The vocabulary map of CTranslate2: a line for each source piece, a tab, the target pieces between spaces.

        The first line has no source piece, and the target pieces of all. Pieces stand by name.

        Raises:
            DataError: The folder is not a corpus, it is encoded with another tokenizer than the model's, or a piece has
                a space, a tab or a line break in its name.
        """
        always, by_source = build_shortlist(self._open(tokenizer), best=self.best, frequent=self.frequent)
        source, target = (side.pieces(range(side.vocab_size)) for side in (tokenizer.src, tokenizer))
        for name in (*source, *target):
            if set(name) & set(" \t\n"):
                raise DataError(f"the piece {name!r} cannot stand in a shortlist: its name has a space or a line break")
        rows = [("", always), *((name, row) for name, row in zip(source, by_source, strict=True) if row)]
        return "".join(f"{name}\t{' '.join(target[piece] for piece in row)}\n" for name, row in rows)

    def lexical_text(self, tokenizer: Tokenizer) -> str:
        """The lexical table that Marian makes a shortlist of: lines of target piece, source piece and probability.

        It has the most probable target pieces of each source piece. With a joint vocabulary, Marian itself lets a piece
        stay as it is; with two, a probability of 1 does.

        Raises:
            DataError: See :meth:`build`.
        """
        corpus = self._open(tokenizer)
        table = lexical_table(corpus.split("train"), tokenizer.src.vocab_size, tokenizer.vocab_size)
        source, target = (side.pieces(range(side.vocab_size)) for side in (tokenizer.src, tokenizer))
        kept = {} if tokenizer.is_joint else same_pieces(tokenizer)
        rows = enumerate(_likely(table, len(source), self.best, kept))
        return "".join(
            f"{target[likely]} {source[piece]} {p:.6g}\n" for piece, row in rows for likely, p in row.items()
        )

    def _open(self, tokenizer: Tokenizer) -> Corpus:
        """The corpus, which must have the tokenizer of the model."""
        corpus = Corpus.open(self.corpus)
        if corpus.tokenizer.identity != tokenizer.identity:
            raise DataError(
                f"--shortlist {self.corpus}: the corpus has another tokenizer than the model: name the corpus that the "
                "model was trained on, or one with its tokenizer"
            )
        return corpus


class LexicalTable(NamedTuple):
    """Probabilities of target pieces, given a source piece, for the pairs that occur together in a sentence pair.

    Attributes:
        source: Of each pair, in ascending order, ``(pairs,)``; one more than the last source piece is the empty word.
        target: Of each pair, in ascending order for each source piece.
        probability: ``p(target | source)``.
    """

    source: Int64
    target: Int64
    probability: Float


def build_shortlist(corpus: Corpus, *, best: int, frequent: int) -> tuple[list[int], list[list[int]]]:
    """The shortlist of a corpus.

    Args:
        corpus: Its training pairs are read.
        best: Most probable target pieces of each source piece.
        frequent: Most frequent target pieces, which every translation may have, with the end of a sentence.

    Returns:
        Target pieces that every translation may have, in ascending order; and for each source piece its further target
        pieces, best first. One that the target side has too may also stay itself, as names and numbers do.
    """
    split, tokenizer = corpus.split("train"), corpus.tokenizer
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for _, _, tgt, _ in _chunks(split):
        counts += np.bincount(tgt, minlength=len(counts))
    most = np.argsort(-counts, kind="stable")[:frequent]
    always = sorted({EOS_ID, *most[counts[most] > 0].tolist()})
    table = lexical_table(split, tokenizer.src.vocab_size, tokenizer.vocab_size)
    rows = _likely(table, tokenizer.src.vocab_size, best, same_pieces(tokenizer))
    return always, [[target for target in row if target not in always] for row in rows]


def same_pieces(tokenizer: Tokenizer) -> dict[int, int]:
    """The target piece of each source piece that both sides have, by their text; bytes too, special ones not."""
    source, target = (side.pieces(range(side.vocab_size))[EOS_ID + 1 :] for side in (tokenizer.src, tokenizer))
    numbers = {text: piece for piece, text in enumerate(target, EOS_ID + 1)}
    return {piece: numbers[text] for piece, text in enumerate(source, EOS_ID + 1) if text in numbers}


def _likely(table: LexicalTable, src_size: int, best: int, kept: Mapping[int, int]) -> Iterator[dict[int, float]]:
    """For each source piece its most probable target pieces, best first; of ``kept`` ones the same piece with 1."""
    order = np.lexsort((table.target, -table.probability, table.source))
    starts = np.searchsorted(table.source, np.arange(src_size + 1)).tolist()
    for piece, (begin, end) in enumerate(pairwise(starts)):
        cells = order[begin : min(end, begin + best)]
        itself = {kept[piece]: 1.0} if piece in kept else {}
        likely = dict(zip(table.target[cells].tolist(), table.probability[cells].tolist(), strict=True))
        yield itself | likely | itself


def lexical_table(split: Split, src_size: int, tgt_size: int) -> LexicalTable:
    """IBM's model 1 of the pieces of a split, from uniform probabilities.

    Args:
        split: The pairs.
        src_size: Number of source pieces.
        tgt_size: Number of target pieces.
    """
    keys = np.zeros(0, dtype=np.int64)
    probability: Float | None = None
    for _ in range(ITERATIONS):
        total = np.zeros(len(keys))
        for chunk in _chunks(split):
            cells, sizes = _cells(*chunk, src_size, tgt_size)
            chunk_keys, inverse = np.unique(cells, return_inverse=True)
            at = np.searchsorted(keys, chunk_keys)
            weight = np.ones(len(cells)) if probability is None else probability[at][inverse]
            begins = np.cumsum(sizes) - sizes
            expected = _sums(inverse, weight / np.repeat(np.add.reduceat(weight, begins), sizes), len(chunk_keys))
            if probability is None:
                keys, merged = np.unique(np.concatenate((keys, chunk_keys)), return_inverse=True)
                total = _sums(merged, np.concatenate((total, expected)), len(keys))
            else:
                total[at] += expected
        source = keys // tgt_size
        probability = total / np.bincount(source, total, src_size + 1)[source]
    assert probability is not None
    return LexicalTable(keys // tgt_size, keys % tgt_size, probability)


def _sums(index: Int64, weights: Float, size: int) -> Float:
    return np.bincount(index, weights, size).astype(np.float64)


def _chunks(split: Split) -> Iterator[tuple[Int64, Int64, Int64, Int64]]:
    """Source pieces, their numbers, target pieces and their numbers, of some pairs at a time."""
    pairs = np.unique(np.linspace(0, len(split) - 1, min(len(split), MAX_PAIRS)).astype(np.int64))
    for begin in range(0, len(pairs), CHUNK_PAIRS):
        src, src_lengths, tgt, tgt_lengths = split.gather(pairs[begin : begin + CHUNK_PAIRS])
        yield src.astype(np.int64), src_lengths.astype(np.int64), tgt.astype(np.int64), tgt_lengths.astype(np.int64)


def _cells(
    src: Int64, src_lengths: Int64, tgt: Int64, tgt_lengths: Int64, empty: int, tgt_size: int
) -> tuple[Int64, Int64]:
    """For each target token the pairs with every source token of its sentence, and with the empty word.

    Returns:
        ``source * tgt_size + target`` of each pair, and the number of pairs of each target token.
    """
    ends = np.cumsum(src_lengths)
    with_empty = np.insert(src, ends, empty)
    lengths = src_lengths + 1
    begins = np.cumsum(lengths) - lengths
    sizes = np.repeat(lengths, tgt_lengths)
    of_token = np.repeat(begins, tgt_lengths)
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    source = with_empty[np.repeat(of_token, sizes) + within]
    return source * tgt_size + np.repeat(tgt, sizes), sizes
