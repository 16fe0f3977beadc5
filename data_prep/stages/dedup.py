"""Finds repeated pairs by their hashes, in bounded memory and on any number of machines.

The hashes of each chunk are in its folder, in buckets by their first bits. A worker takes one bucket, of all chunks,
and marks the first occurrence of each hash, so it holds one bucket in memory. The marks of a bucket are in the order
of the chunks, and within a chunk in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.stages.text import Counts, Hashes
from data_prep.store.chunks import Report, chunk_folder, write_chunk

# Hashes of a bucket, about: 32 MB, and five times as much while the first occurrences are found.
_BUCKET_ROWS = 4_000_000

_KEYS, _ORDER, _MARKS = "keys", "order", "marks"


def bucket_bits(rows: int) -> int:
    """The number of leading bits that the hashes of a bucket share, for this number of rows in all."""
    return max(0, -(-rows // _BUCKET_ROWS) - 1).bit_length()


def write_keys(folder: Path, keys: Hashes, bits: int) -> list[int]:
    """Write the hashes of a chunk, ``(rows,)``, in the order of their buckets.

    Returns:
        The number of hashes in each bucket, ``(2**bits,)``.
    """
    buckets = keys >> np.uint64(64 - bits) if bits else np.zeros(len(keys), dtype=np.uint64)
    order = np.argsort(buckets, kind="stable").astype(np.uint32)
    keys[order].tofile(folder / _KEYS)
    order.tofile(folder / _ORDER)
    return [int(count) for count in np.bincount(buckets.astype(np.int64), minlength=1 << bits)]


def filtered_chunk(root: Path, number: int) -> Path:
    """The folder of a chunk with its hashes."""
    return chunk_folder(root, "judged", number)


@dataclass(frozen=True)
class Distinct:
    """The pairs that are left without repeated ones.

    Attributes:
        files: Files of pairs, in order.
        dropped: The repeated pairs of each part, ``(parts,)``.
        examples: The first of them.
    """

    files: Sequence[Path]
    dropped: Counts
    examples: list[tuple[str, str]]


@dataclass(frozen=True)
class Slices:
    """Where the hashes of a bucket are in each chunk, or the marks of a chunk in each bucket.

    Attributes:
        root: The folder of the chunks.
        number: The number of the bucket, or of the chunk.
        begins: Where each slice begins, ``(chunks,)`` or ``(buckets,)``.
        counts: How many hashes or marks it has, ``(chunks,)`` or ``(buckets,)``.
    """

    root: Path
    number: int
    begins: Counts
    counts: Counts


class Marked(Report):
    """The report of a bucket: how many different hashes it has."""

    distinct: int


def list_buckets(root: Path, counts: Counts) -> list[Slices]:
    """List the buckets, given the number of hashes of each chunk in each, ``(chunks, buckets)``."""
    begins = np.cumsum(counts, axis=1) - counts
    return [Slices(root, number, begins[:, number], counts[:, number]) for number in range(counts.shape[1])]


def list_rows(root: Path, counts: Counts) -> list[Slices]:
    """List the rows of the chunks, given the same numbers."""
    begins = np.cumsum(counts, axis=0) - counts
    return [Slices(root, number, begins[number], counts[number]) for number in range(counts.shape[0])]


def mark_bucket(bucket: Slices) -> Marked:
    """Write whether each hash of a bucket is its first occurrence: a byte each."""

    def write(folder: Path) -> Marked:
        parts = zip(bucket.begins.tolist(), bucket.counts.tolist(), strict=True)
        paths = (filtered_chunk(bucket.root, number) / _KEYS for number in range(len(bucket.counts)))
        keys = np.concatenate([*_slices(paths, parts, np.uint64)])
        first = np.unique(keys, return_index=True)[1]
        marks = np.zeros(len(keys), dtype=np.bool_)
        marks[first] = True
        marks.tofile(folder / _MARKS)
        return Marked(distinct=len(first))

    return write_chunk(_marked(bucket.root, bucket.number), Marked, write)


def first_occurrences(rows: Slices) -> npt.NDArray[np.bool_]:
    """Tell which rows of a chunk are first occurrences, once all buckets are marked."""
    parts = zip(rows.begins.tolist(), rows.counts.tolist(), strict=True)
    paths = (_marked(rows.root, number) / _MARKS for number in range(len(rows.counts)))
    order = np.fromfile(filtered_chunk(rows.root, rows.number) / _ORDER, dtype=np.uint32)
    first = np.empty(len(order), dtype=np.bool_)
    first[order] = np.concatenate([*_slices(paths, parts, np.bool_)])
    return first


def _marked(root: Path, number: int) -> Path:
    return chunk_folder(root, "marked", number)


def _slices(paths: Iterator[Path], parts: Iterator[tuple[int, int]], kind: type[Any]) -> Iterator[npt.NDArray[Any]]:
    """Read a range of numbers of each file, given its begin and its length."""
    yield np.empty(0, dtype=kind)
    for path, (begin, count) in zip(paths, parts, strict=True):
        if count:
            yield np.fromfile(path, dtype=kind, count=count, offset=begin * np.dtype(kind).itemsize)
