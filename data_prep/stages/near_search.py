"""Drops near duplicates, in bounded memory and on any number of machines.

The hashes of each piece lie in its folder, in buckets (:func:`data_prep.stages.near.enter`). A worker takes one bucket,
of all pieces, and writes which rows are to be compared with which, in the order of the rows. Then a worker takes one piece,
with the candidates of its rows from all buckets, compares texts, and writes the pairs that are left. What one step
leaves for another goes through the work folder, so an interrupted search goes on from its pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from data_prep.recipe.options import CleanOptions
from data_prep.stages.near import (
    choose_bands,
    compared_texts,
    enter,
    find_candidates,
    first_candidates,
    hash_bands,
    jaccard,
    split_candidates,
)
from data_prep.store.chunks import make_piece
from data_prep.store.pairs import (
    Hashes,
    Index,
    PairsWriter,
    Piece,
    add_examples,
    cut_pairs,
    index_pairs,
    iter_piece,
    merge_examples,
    take_pairs,
)
from data_prep.store.slices import read_slice, write_slices
from data_prep.workers.pool import Workers, run_tasks
from dstransformer.errors import ConfigError
from dstransformer.io.files import file_sha256
from dstransformer.terminal.progress import Progress

# Entries of a bucket, about: 134 MB, and some four times as much where most rows share a hash with another.
_BUCKET_ENTRIES = 1 << 24

# Candidates whose texts are looked up at once.
_LOOKED_UP = 20_000

#: In the folder of a piece: the entries of its rows; candidates; the pairs that are left; where the batches are.
_ENTRIES, _CANDIDATES, _PAIRS, _INDEX = "entries", "candidates", "pairs.arrow", "index"


@dataclass(frozen=True)
class Distinct:
    """What is left without near duplicates.

    Attributes:
        files: Files of pairs, in order.
        dropped: The near duplicates of each part, ``(parts,)``.
        examples: The first of them.
    """

    files: Sequence[Path]
    dropped: npt.NDArray[np.int64]
    examples: Sequence[tuple[str, str]]


class _Done(BaseModel):
    """A piece whose files say all."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class _Left(BaseModel):
    """The near duplicates of a piece, by part, and the first of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dropped: list[int]
    examples: list[tuple[str, str]]


@dataclass(frozen=True)
class _Search:
    """What a worker must know: the pairs, the folder of the pieces, the hash of the index, the options, and how many
    parts and bits.
    """

    path: Path
    root: Path
    index: str
    options: CleanOptions
    parts: int
    bits: int

    @property
    def buckets(self) -> int:
        assert self.options.near_duplicates is not None
        return choose_bands(self.options.near_duplicates)[0] << self.bits

    def piece(self, step: str, number: int) -> Path:
        return self.root / f"{step}-{number:06d}"


def drop_near_duplicates(
    path: Path, root: Path, parts: int, options: CleanOptions, workers: Workers, progress: Progress
) -> Distinct:
    """Drop the pairs that are like an earlier pair, which may itself be like one before it.

    Args:
        path: A file of pairs.
        root: The folder of the pieces.
        parts: The number of parts of the pairs.
        options: ``near_duplicates`` is the least Jaccard index of two texts that are alike.
        workers: Who does it; the result does not depend on them.
        progress: Shows what is done.

    Raises:
        ConfigError: There are too many pairs.
    """
    index = index_pairs(path)
    total = int(index.firsts[-1])
    if total >= 1 << 32:  # rows are numbered with 32 bits
        raise ConfigError(f"--near-duplicates: {total:,} pairs are too many, at most {(1 << 32) - 1:,}: leave it out")
    bits = max(-(-total // _BUCKET_ENTRIES) - 1, 0).bit_length()
    make_piece(_indexed(root), _Done, partial(_write_index, index))
    search = _Search(path, root, file_sha256(_indexed(root) / _INDEX), options, parts, bits)
    pieces = cut_pairs(path, index)
    with (
        progress.task("hash for near duplicates", total) as advance,
        closing(run_tasks(partial(_hash_piece, search), pieces, workers)) as hashed,
    ):
        for piece, _ in zip(pieces, hashed, strict=True):
            advance(piece.rows)
    with (
        progress.task("sort hashes in buckets", search.buckets) as advance,
        closing(run_tasks(partial(_pair_bucket, search), range(search.buckets), workers)) as paired,
    ):
        for _ in paired:
            advance(1)
    dropped, examples = np.zeros(parts, dtype=np.int64), list[tuple[str, str]]()
    with (
        progress.task("drop near duplicates", total) as advance,
        closing(run_tasks(partial(_leave_others, search), pieces, workers)) as results,
    ):
        for piece, report in zip(pieces, results, strict=True):
            dropped += report.dropped
            merge_examples(examples, report.examples)
            advance(piece.rows)
    return Distinct([search.piece("distinct", piece.number) / _PAIRS for piece in pieces], dropped, examples)


def _indexed(root: Path) -> Path:
    return root / "index-000000"


def _write_index(index: Index, folder: Path) -> _Done:
    np.concatenate([index.offsets, index.firsts]).tofile(folder / _INDEX)
    return _Done()


@lru_cache(maxsize=1)
def _load_index(root: Path, content: str) -> Index:
    """The index of the pairs. A worker keeps it while its hash, ``content``, stays the same."""
    del content
    numbers = np.fromfile(_indexed(root) / _INDEX, dtype=np.int64)
    return Index(*np.split(numbers, [len(numbers) // 2]))


def _hash_piece(search: _Search, piece: Piece) -> _Done:
    """Write the entries of a piece, in the order of the buckets: band after band."""

    def make(folder: Path) -> _Done:
        keys = np.concatenate([hash_bands(table, search.options) for table in iter_piece(piece)])
        bands = (enter(band, piece.first, search.bits) for band in keys.T)
        write_slices(folder / _ENTRIES, search.buckets, bands)
        return _Done()

    return make_piece(search.piece("hashed", piece.number), _Done, make)


def _pair_bucket(search: _Search, number: int) -> _Done:
    """Write the candidates of a bucket, in the order of the pieces of their later rows."""

    def make(folder: Path) -> _Done:
        pieces = cut_pairs(search.path, _load_index(search.root, search.index))
        paths = (search.piece("hashed", piece.number) / _ENTRIES for piece in pieces)
        candidates = find_candidates(np.concatenate([read_slice(path, number) for path in paths]))
        firsts = first_candidates(np.array([piece.first for piece in pieces]))
        counts = np.diff(np.searchsorted(candidates, firsts), append=len(candidates))
        write_slices(folder / _CANDIDATES, len(pieces), [(candidates, counts)])
        return _Done()

    return make_piece(search.piece("paired", number), _Done, make)


def _leave_others(search: _Search, piece: Piece) -> _Left:
    """Write the pairs of a piece that are not near duplicates."""

    def make(folder: Path) -> _Left:
        paths = (search.piece("paired", number) / _CANDIDATES for number in range(search.buckets))
        candidates = np.unique(np.concatenate([read_slice(path, piece.number) for path in paths]))
        near = np.zeros(piece.rows, dtype=np.bool_)
        near[_find_alike(search, candidates) - piece.first] = True
        begin, dropped, examples = 0, np.zeros(search.parts, dtype=np.int64), list[tuple[str, str]]()
        with PairsWriter(folder / _PAIRS, durable=False) as writer:
            for table in iter_piece(piece):
                drops = near[begin : begin + table.num_rows]
                begin += table.num_rows
                writer.write(table.filter(pa.array(~drops)))
                add_examples(examples, table, drops)
                dropped += np.bincount(table["part"].to_numpy()[drops], minlength=search.parts)
        return _Left(dropped=dropped.tolist(), examples=examples)

    return make_piece(search.piece("distinct", piece.number), _Left, make)


def _find_alike(search: _Search, candidates: Hashes) -> npt.NDArray[np.int64]:
    """The rows whose text is like that of one of their candidates; nothing is compared once that is known."""
    threshold = search.options.near_duplicates
    assert threshold is not None
    alike: list[int] = []
    for row, text, other in _iter_texts(search, candidates):
        if alike[-1:] != [row] and jaccard(text, other, search.options) >= threshold:
            alike.append(row)
    return np.array(alike, dtype=np.int64)


def _iter_texts(search: _Search, candidates: Hashes) -> Iterator[tuple[int, str, str]]:
    """Each candidate row, with its text and that of the earlier row. The file is mapped anew for every few of them."""
    index = _load_index(search.root, search.index)
    for begin in range(0, len(candidates), _LOOKED_UP):
        sides = split_candidates(candidates[begin : begin + _LOOKED_UP])
        rows, places = np.unique(np.concatenate(sides), return_inverse=True)
        texts = compared_texts(take_pairs(search.path, rows, index), search.options)
        here, there = places.reshape(2, -1).tolist()
        for row, one, other in zip(sides[0].tolist(), here, there, strict=True):
            yield row, texts[one], texts[other]
