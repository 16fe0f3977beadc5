"""Scores of pairs that other tools have computed, such as Bicleaner, LASER or COMET: one number a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from data_prep.sources.texts import Text, iter_sentences
from dstransformer.errors import DataError, shown


def mark_low(tables: Iterator[pa.Table], scores: Sequence[Text], min_score: float) -> Iterator[pa.Table]:
    """Add a column ``low`` to tables of pairs: whether a pair's score is below ``min_score``.

    Args:
        tables: The pairs.
        scores: Files with the scores of all pairs, one after the other.
        min_score: The lowest score of a pair that is kept.

    Raises:
        DataError: A line is not a number, or there are not as many as pairs.
    """
    numbers = (number for path in scores for number in _read_scores(path))
    pairs = 0
    names = ", ".join(map(str, scores))
    for table in tables:
        found = list(islice(numbers, table.num_rows))
        pairs += len(found)
        if len(found) < table.num_rows:
            raise DataError(f"{names}: {pairs:,} scores, fewer than pairs: line n must be the score of pair n")
        yield table.append_column("low", pa.array([number < min_score for number in found], pa.bool_()))
    if next(numbers, None) is not None:
        raise DataError(f"{names}: more scores than the {pairs:,} pairs: line n must be the score of pair n")


def _read_scores(text: Text) -> Iterator[float]:
    for number, line in enumerate(iter_sentences(text), 1):
        try:
            score = float(line)
        except ValueError:
            score = math.nan
        if math.isnan(score):
            raise DataError(f"{text}, line {number}: {shown(line)} is not a number")
        yield score
