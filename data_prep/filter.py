"""Drops the worst share of sentence pairs by a score: the filter of translations that a model has made."""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from dstransformer.errors import DataError, UserError, counted, shown
from dstransformer.io.text import is_same_file, iter_lines, writing_files

#: Which end of the scores is the worst.
Worst = Literal["lowest", "highest"]


@dataclass(frozen=True)
class Filtered:
    """What a filter did: ``read == kept + empty + unscored + worst``.

    Attributes:
        read: Pairs read.
        empty: Pairs dropped for an empty side.
        unscored: Pairs dropped because their score is not a number.
        worst: Pairs dropped as the worst of the others.
    """

    read: int
    empty: int
    unscored: int
    worst: int

    @property
    def kept(self) -> int:
        """Pairs written."""
        return self.read - self.empty - self.unscored - self.worst

    def __str__(self) -> str:
        return (
            f"{self.kept:,} of {self.read:,} pairs kept; dropped: {self.worst:,} with the worst scores, "
            f"{self.unscored:,} without a score, {self.empty:,} with an empty side"
        )


def filter_pairs(
    src: Path,
    tgt: Path,
    scores: Path,
    out: tuple[Path, Path],
    *,
    share: float,
    worst: Worst,
    column: int,
    overwrite: bool,
) -> Filtered:
    """Write the pairs of two texts without the share that has the worst scores.

    Pairs with an empty side or without a score (``nan``) are dropped first; the share is one of the rest, rounded down.
    Of equal scores, those further down the file are dropped. Holds nine bytes for each pair in memory.

    Args:
        src: Source text, one sentence a line, plain or gzipped.
        tgt: Its translation, line by line.
        scores: Columns separated by tabs, a line for each pair, as ``dst score`` writes them.
        out: Where source and target text go; gzipped if the name ends in ``.gz``. They appear together.
        share: The share to drop, at least 0 and less than 1.
        worst: Whether the lowest or the highest scores are the worst.
        column: The column of the score, from 1.
        overwrite: Whether existing files are replaced.

    Raises:
        UserError: An output exists, or is an input, or both are one file.
        DataError: A file cannot be read, the files have different numbers of lines, a score is not a number, or no pair
            is left.
        StorageError: A file cannot be written. None appears.
    """
    if is_same_file(*out):
        raise UserError(f"--out-src and --out-tgt are both {out[0]}: give each its own file")
    inputs = (src, tgt, scores)
    with writing_files(out, overwrite=overwrite, inputs=inputs) as (write_src, write_tgt):
        values, empty = _read(src, tgt, scores, column)
        unscored = np.isnan(values) & ~empty
        ranked = np.flatnonzero(~np.isnan(values) & ~empty)
        order = ranked[np.argsort(values[ranked] * (1 if worst == "highest" else -1), kind="stable")]
        kept = np.zeros(len(values), dtype=bool)
        kept[order[: len(order) - math.floor(share * len(order))]] = True
        done = Filtered(len(values), int(empty.sum()), int(unscored.sum()), len(order) - int(kept.sum()))
        if not done.kept:
            raise DataError(
                f"no pair of {src} and {tgt} is left: {done.unscored:,} have no score in {scores}, {done.empty:,} have "
                "an empty side; look at the translations before training on them"
            )
        for is_kept, source, target in zip(kept, iter_lines(src), iter_lines(tgt), strict=True):
            if is_kept:
                write_src(source)
                write_tgt(target)
    return done


def _read(src: Path, tgt: Path, scores: Path, column: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """The score of each pair, and whether it has an empty side."""
    values, empty = array("d"), array("b")
    counts = [0, 0, 0]
    for row in zip_longest(iter_lines(src), iter_lines(tgt), _iter_scores(scores, column)):
        counts = [count + (value is not None) for count, value in zip(counts, row, strict=True)]
        source, target, value = row
        if source is None or target is None or value is None:
            continue
        values.append(value)
        empty.append(not source.strip() or not target.strip())
    if len(set(counts)) > 1:
        lengths = ", ".join(f"{p} has {counted(n, 'line')}" for p, n in zip((src, tgt, scores), counts, strict=True))
        raise DataError(f"{lengths}: line n of each must belong to pair n; make the shorter file again")
    return np.array(values), np.array(empty, dtype=bool)


def _iter_scores(path: Path, column: int) -> Iterator[float]:
    for number, line in enumerate(iter_lines(path), 1):
        cells = line.split("\t")
        if len(cells) < column:
            raise DataError(f"{path}, line {number}: {counted(len(cells), 'column')}, and --column {column} is wanted")
        try:
            value = float(cells[column - 1])
        except ValueError:
            raise DataError(f"{path}, line {number}: {shown(cells[column - 1])} is not a number") from None
        yield value
