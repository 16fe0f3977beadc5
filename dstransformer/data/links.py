"""The alignments of a micro-batch, between the pieces that it holds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dstransformer.data import Split, Tokenizer
from dstransformer.data.alignment import WordBorders
from dstransformer.data.packing import Links, Packing
from dstransformer.data.plan import Indices, Lengths
from dstransformer.data.reader import Int32, Pairs

Int64 = npt.NDArray[np.int64]


class _Words(NamedTuple):
    """The words of the sentences of one side.

    Attributes:
        begins: The piece that each begins with, and the number of pieces, ``(words + 1,)``.
        counts: Words of each sentence, ``(n,)``.
    """

    begins: Int64
    counts: Int64

    @property
    def firsts(self) -> Int64:
        """The number of the first word of each sentence, ``(n,)``."""
        firsts: Int64 = np.cumsum(self.counts) - self.counts
        return firsts


class LinkReader:
    """Reads the alignments of pairs.

    Args:
        split: The training split, with alignments.
        tokenizer: The tokenizer of the corpus.
    """

    def __init__(self, split: Split, tokenizer: Tokenizer) -> None:
        self._split = split
        self._borders = WordBorders(tokenizer.src), WordBorders(tokenizer)

    def read(self, rows: Indices, stored: Pairs, pairs: Pairs) -> Links | None:
        """The alignments of a micro-batch; None if no pair has any.

        A pair whose number of words has changed with its pieces, as augmentation may do, is left without.

        Args:
            rows: The numbers of the pairs in the split, ``(n,)``.
            stored: The pairs in stored pieces.
            pairs: The pairs in the pieces that the micro-batch holds.
        """
        links, counts = self._split.gather_links(rows)
        sentences = np.repeat(np.arange(len(rows)), counts)
        sides = self._words(pairs)
        if pairs is not stored:
            before = self._words(stored)
            same = np.all([old.counts == new.counts for old, new in zip(before, sides, strict=True)], axis=0)
            links, sentences = links[same[sentences]], sentences[same[sentences]]
        if not sentences.size:
            return None
        src_pieces, tgt_pieces, sentences = _link_pieces(links, sentences, *sides)
        return _pack_links(src_pieces, tgt_pieces, sentences, pairs.src_lengths, pairs.tgt_lengths)

    def _words(self, pairs: Pairs) -> list[_Words]:
        sides = []
        for borders, (ids, lengths) in zip(self._borders, pairs.sides, strict=True):
            begins = np.flatnonzero(borders.begins(ids, lengths))
            ends = np.cumsum(lengths, dtype=np.int64)
            counts = np.searchsorted(begins, ends) - np.searchsorted(begins, ends - lengths)
            sides.append(_Words(np.append(begins, len(ids)), counts))
        return sides


def _link_pieces(links: Int32, sentences: Int64, src: _Words, tgt: _Words) -> tuple[Int64, Int64, Int64]:
    """Link each piece of a word with each piece of the other: both pieces, and the sentence, of each pair of pieces."""
    src_words, tgt_words = src.firsts[sentences] + links[:, 0], tgt.firsts[sentences] + links[:, 1]
    src_begins, tgt_begins = src.begins[src_words], tgt.begins[tgt_words]
    src_sizes, tgt_sizes = src.begins[src_words + 1] - src_begins, tgt.begins[tgt_words + 1] - tgt_begins
    counts = src_sizes * tgt_sizes
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    width = np.repeat(tgt_sizes, counts)
    return (
        np.repeat(src_begins, counts) + within // width,
        np.repeat(tgt_begins, counts) + within % width,
        np.repeat(sentences, counts),
    )


def _pack_links(src: Int64, tgt: Int64, sentences: Int64, src_lengths: Lengths, tgt_lengths: Lengths) -> Links:
    """Linked pieces, and the sentences that have them. In a packed batch each has one more token, begin or end."""
    linked, numbers = np.unique(sentences, return_inverse=True)
    sides = []
    for pieces, lengths in ((src, src_lengths), (tgt, tgt_lengths)):
        begins = np.cumsum(lengths, dtype=np.int64) - lengths
        packing = Packing.from_lengths(lengths[linked] + 1)
        rows = np.concatenate([np.arange(begins[n] + n, begins[n] + n + lengths[n] + 1) for n in linked.tolist()])
        sides.append((torch.from_numpy(rows), packing, pieces - begins[sentences]))
    (src_rows, src_packing, src_places), (tgt_rows, tgt_packing, tgt_places) = sides
    tokens = numbers * tgt_packing.max_len + tgt_places
    shares = 1.0 / np.bincount(tokens)[tokens]
    return Links(
        src_rows,
        src_packing,
        tgt_rows,
        tgt_packing,
        torch.from_numpy(tokens * src_packing.max_len + src_places),
        torch.from_numpy(shares.astype(np.float32)),
    )
