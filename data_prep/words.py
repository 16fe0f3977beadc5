"""How long sentences are, in words, before and after cleaning."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dstransformer.corpus import MAX_WORDS, WordCounts

Counts = npt.NDArray[np.int64]


def no_words() -> Counts:
    """Counts of no sentences, ``(2, MAX_WORDS + 1)``."""
    return np.zeros((2, MAX_WORDS + 1), dtype=np.int64)


def count_words(src: pa.ChunkedArray, tgt: pa.ChunkedArray) -> Counts:
    """Count the normalised sentences of each side by their words, ``(2, MAX_WORDS + 1)``."""
    counts = no_words()
    for side, texts in enumerate((src, tgt)):
        words = pc.count_substring(texts, " ").to_numpy() + pc.not_equal(texts, "").to_numpy()
        counts[side] = np.bincount(np.minimum(words, MAX_WORDS), minlength=MAX_WORDS + 1)
    return counts


def describe_words(counts: Counts) -> WordCounts:
    """The counts for the manifest, without those that are zero at their end."""
    src, tgt = (tuple(np.trim_zeros(side, "b").tolist()) for side in counts)
    return WordCounts(src=src, tgt=tgt)
