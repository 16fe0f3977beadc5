"""Finds repeated pairs by their hashes, in bounded memory and on any number of machines.

The hashes of each chunk are in its folder, in buckets by their first bits. A worker takes one bucket, of all chunks,
and marks the first occurrence of each hash, so it holds one bucket in memory. The marks of a bucket are in the order
of the chunks, and within a chunk in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

# Bytes of an offset in a file of slices.
_BYTES = 8


def write_slices(path: Path, slices: int, parts: Iterable[tuple[npt.NDArray[Any], Counts]]) -> None:
    """Write a file of slices of numbers, each of which can be read without the others.

    It begins with a table of the slices' offsets, so only workers need to know them.

    Args:
        path: The file.
        slices: The number of slices.
        parts: Numbers of consecutive slices, and how many are in each. The parts together have all slices.
    """
    sizes = [np.array([_BYTES * (slices + 1)], dtype=np.int64)]  # the first slice follows the table
    with path.open("wb") as file:
        file.seek(_BYTES * (slices + 1))
        for numbers, counts in parts:
            file.write(np.ascontiguousarray(numbers).data)
            sizes.append(counts * numbers.itemsize)
        file.seek(0)
        file.write(np.cumsum(np.concatenate(sizes), dtype=np.int64).data)


def read_slice(path: Path, number: int, kind: type[Any]) -> npt.NDArray[Any]:
    """Read a slice of numbers of a kind."""
    with path.open("rb") as file:
        file.seek(_BYTES * number)
        begin, end = np.frombuffer(file.read(2 * _BYTES), dtype=np.int64).tolist()
        file.seek(begin)
        return np.frombuffer(file.read(end - begin), dtype=kind)


@dataclass(frozen=True)
class Buckets:
    """Where the hashes of the rows of a file are.

    Attributes:
        root: The folder of the chunks.
        chunks: Number of chunks.
        bits: The number of leading bits that the hashes of a bucket share.
    """

    root: Path
    chunks: int
    bits: int

    def __len__(self) -> int:
        return 1 << self.bits


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


class Marked(Report):
    """The report of a bucket: how many different hashes it has."""

    distinct: int


def bucket_bits(rows: int) -> int:
    """The number of leading bits that the hashes of a bucket share, for this number of rows in all."""
    return max(0, -(-rows // _BUCKET_ROWS) - 1).bit_length()


def write_keys(folder: Path, keys: Hashes, bits: int) -> None:
    """Write the hashes of a chunk, ``(rows,)``, in the order of their buckets."""
    buckets = (keys >> np.uint64(64 - bits) if bits else np.zeros(len(keys))).astype(np.int64)
    order = np.argsort(buckets, kind="stable").astype(np.uint32)
    write_slices(folder / _KEYS, 1 << bits, [(keys[order], np.bincount(buckets, minlength=1 << bits))])
    order.tofile(folder / _ORDER)


def filtered_chunk(root: Path, number: int) -> Path:
    """The folder of a chunk with its hashes."""
    return chunk_folder(root, "judged", number)


def mark_bucket(buckets: Buckets, number: int) -> Marked:
    """Write whether each hash of a bucket is its first occurrence: a byte each, in a slice for each chunk."""

    def write(folder: Path) -> Marked:
        paths = (filtered_chunk(buckets.root, chunk) / _KEYS for chunk in range(buckets.chunks))
        slices = [read_slice(path, number, np.uint64) for path in paths]
        keys = np.concatenate(slices)
        first = np.unique(keys, return_index=True)[1]
        marks = np.zeros(len(keys), dtype=np.bool_)
        marks[first] = True
        write_slices(folder / _MARKS, len(slices), [(marks, np.array([*map(len, slices)], dtype=np.int64))])
        return Marked(distinct=len(first))

    return write_chunk(chunk_folder(buckets.root, "marked", number), Marked, write)


def first_occurrences(buckets: Buckets, chunk: int) -> npt.NDArray[np.bool_]:
    """Tell which rows of a chunk are first occurrences, once all buckets are marked."""
    paths = (chunk_folder(buckets.root, "marked", number) / _MARKS for number in range(len(buckets)))
    order = np.fromfile(filtered_chunk(buckets.root, chunk) / _ORDER, dtype=np.uint32)
    first = np.empty(len(order), dtype=np.bool_)
    first[order] = np.concatenate([read_slice(path, chunk, np.bool_) for path in paths])
    return first
