"""Holds random pairs out of the training text, in bounded memory and on any number of machines.

A sentence that several pairs share counts once, where it is first. The first occurrences are found as those of repeated
pairs are (:mod:`data_prep.stages.dedup`). Random ones are chosen by their number, and all pairs that share their
sentence leave the training text.

The overlap of the training text with held-out text is always counted, and with ``--drop-overlap`` removed. Sentences
are compared in Unicode form NFKC, whatever ``--normalise`` is. Held-out sets are small, so their hashes are kept in
memory while the training text is read.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.stages.dedup import (
    Buckets,
    bucket_bits,
    filtered_chunk,
    first_occurrences,
    mark_bucket,
    write_keys,
)
from data_prep.stages.text import Counts, Hashes, comparison_keys, fold, hash_texts
from data_prep.store.chunks import Report, chunk_folder, open_chunks, write_chunk
from data_prep.store.pairs import (
    Chunk,
    Kept,
    PairsWriter,
    cut_pairs,
    index_pairs,
    iter_chunk,
    iter_pairs,
    join_pairs,
    take_pairs,
    write_kept,
)
from data_prep.workers import Workers, list_results, run_tasks
from dstransformer.data import Overlap
from dstransformer.errors import UserError
from dstransformer.io.files import file_sha256
from dstransformer.io.progress import Progress

#: In the folder of a chunk: the keys of its source sentences; the rows that can be held out; the pairs that are left.
#: In that of the chunks: the keys of the sentences that are held out.
_SOURCES, _USABLE, _PAIRS, _CHOSEN = "sources", "usable", "pairs.arrow", "chosen"

_SPLITS = ("validation", "test")


@dataclass(frozen=True)
class _Search:
    """What a worker needs: the buckets of the keys, the part that sets are held out of, and the number of parts."""

    buckets: Buckets
    part: int
    parts: int


def hold_out(
    folder: Path, part: int, parts: int, sizes: Mapping[str, int], seed: int, workers: Workers, progress: Progress
) -> Counts:
    """Move random pairs of a part out of ``folder/train.arrow``, and drop all that share their source sentences.

    Args:
        folder: Gets a file of pairs for each split; they follow those of other parts that it has.
        part: The part.
        parts: Number of parts of the training text.
        sizes: The pairs of each split.
        seed: The seed of the choice.
        workers: Where the tasks run; the result does not depend on it.
        progress: Shows what is done.

    Returns:
        The training pairs of each part that are left, ``(parts,)``.

    Raises:
        UserError: The text is too small.
    """
    train, whole = folder / "train.arrow", folder / "whole.arrow"
    train.rename(whole)
    index = index_pairs(whole)
    chunks = cut_pairs(whole, index)
    total = sum(chunk.rows for chunk in chunks)
    root = open_chunks(folder, part)
    buckets = Buckets(root, len(chunks), bucket_bits(total))
    search = _Search(buckets, part, parts)
    with progress.task("hold out", total) as advance:
        with run_tasks(partial(_hash_chunk, search), chunks, workers) as hashed:
            for chunk, _ in zip(chunks, hashed, strict=True):
                advance(chunk.rows)
        marked = list_results(partial(mark_bucket, buckets), range(len(buckets)), workers)
        chosen = _choose(sum(report.distinct for report in marked), sizes, seed)
        rows, keys = _locate(np.concatenate(list(chosen.values())), buckets, chunks, workers)
        np.sort(keys).tofile(root / _CHOSEN)
        kept = list_results(partial(_drop_held_out, search), chunks, workers)
    join_pairs((chunk_folder(root, "left", chunk.number) / _PAIRS for chunk in chunks), train)
    begin = 0
    for split, numbers in chosen.items():
        taken = take_pairs(whole, np.sort(rows[begin : begin + len(numbers)]), index)
        _append(folder / f"{split}.arrow", taken)
        begin += len(numbers)
    shutil.rmtree(root)
    whole.unlink()
    left: Counts = np.sum([report.parts for report in kept], axis=0, dtype=np.int64)
    return left


def _append(path: Path, table: pa.Table) -> None:
    """Add pairs to a held-out split, which other parts may have begun."""
    earlier = [pa.Table.from_batches([batch]) for batch in iter_pairs(path)] if path.exists() else []
    with PairsWriter(path) as writer:
        for part in (*earlier, table):
            writer.write(part)


def _choose(distinct: int, sizes: Mapping[str, int], seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Choose the numbers of the sentences of each split, from ``distinct`` different ones."""
    wanted = sum(sizes.values())
    if not distinct:
        raise UserError("no training pair has text on both sides: check that both files hold text")
    if wanted >= distinct:
        raise UserError(
            f"cannot hold {wanted} pairs out of a training text of {distinct} distinct source sentences: "
            "choose a smaller --valid-size or --test-size, or give separate held-out text with --valid and --test"
        )
    numbers = np.random.default_rng(seed).choice(distinct, size=wanted, replace=False)
    return dict(zip(sizes, np.split(numbers, np.cumsum(list(sizes.values()))[:-1]), strict=True))


def _locate(
    numbers: npt.NDArray[np.int64], buckets: Buckets, chunks: Sequence[Chunk], workers: Workers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Find sentences by their numbers.

    Returns:
        The row of the first pair with each, and its key.
    """
    ends = np.cumsum(list_results(partial(_count_first, buckets), range(len(chunks)), workers))
    chunk_of = np.searchsorted(ends, numbers, side="right")
    begins = np.concatenate([[0], ends])
    tasks = [(chunks[n], numbers[chunk_of == n] - begins[n]) for n in np.unique(chunk_of).tolist()]
    rows, keys = np.empty(len(numbers), dtype=np.int64), np.empty(len(numbers), dtype=np.uint64)
    for (chunk, _), located in zip(tasks, list_results(partial(_find, buckets), tasks, workers), strict=True):
        here = chunk_of == chunk.number
        rows[here], keys[here] = located
    return rows, keys


def _count_first(buckets: Buckets, chunk: int) -> int:
    return int(first_occurrences(buckets, chunk).sum())


def _find(
    buckets: Buckets, task: tuple[Chunk, npt.NDArray[np.int64]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Find sentences of a chunk, by their numbers among its first occurrences: their rows in the file, and keys."""
    chunk, numbers = task
    folder = filtered_chunk(buckets.root, chunk.number)
    usable = np.flatnonzero(first_occurrences(buckets, chunk.number))[numbers]
    in_chunk = np.fromfile(folder / _USABLE, dtype=np.uint32)[usable].astype(np.int64)
    return chunk.first + in_chunk, np.fromfile(folder / _SOURCES, dtype=np.uint64)[in_chunk]


def _hash_chunk(search: _Search, chunk: Chunk) -> Report:
    """Write the keys of the source sentences of a chunk, equal for equal ones, and which can be held out."""

    def write(folder: Path) -> Report:
        keys, usable = [np.empty(0, dtype=np.uint64)], [np.empty(0, dtype=np.bool_)]
        for table in iter_chunk(chunk):
            src, tgt = fold(table["src"].to_pylist()), fold(table["tgt"].to_pylist())
            has_text = np.fromiter((bool(a and b) for a, b in zip(src, tgt, strict=True)), np.bool_, len(src))
            keys.append(hash_texts(src))
            usable.append(has_text & ~table["low"].to_numpy() & (table["part"].to_numpy() == search.part))
        sources, rows = np.concatenate(keys), np.flatnonzero(np.concatenate(usable))
        sources.tofile(folder / _SOURCES)
        rows.astype(np.uint32).tofile(folder / _USABLE)
        write_keys(folder, sources[rows], search.buckets.bits)
        return Report()

    return write_chunk(filtered_chunk(search.buckets.root, chunk.number), Report, write)


def _drop_held_out(search: _Search, chunk: Chunk) -> Kept:
    """Write the pairs of a chunk whose sentences are not held out."""
    root = search.buckets.root

    def write(folder: Path) -> Kept:
        sources = np.fromfile(filtered_chunk(root, chunk.number) / _SOURCES, dtype=np.uint64)
        keep = ~np.isin(sources, np.fromfile(root / _CHOSEN, dtype=np.uint64))
        return write_kept(iter_chunk(chunk), keep, folder / _PAIRS, search.parts)

    return write_chunk(chunk_folder(root, "left", chunk.number), Kept, write)


class HeldOut:
    """The hashes of the held-out splits, with which training text is compared."""

    def __init__(self, read: Path) -> None:
        """Hash the held-out splits in the folder ``read``."""
        self._splits: dict[str, tuple[Hashes, Hashes]] = {}  # of source sentences, and of pairs
        for path in (read / f"{name}.arrow" for name in _SPLITS):
            if path.exists():
                src, pairs = zip(*(comparison_keys(batch) for batch in iter_pairs(path)), strict=True)
                self._splits[path.stem] = np.concatenate(src), np.concatenate(pairs)
        nothing = np.empty(0, dtype=np.uint64)
        self._src = np.unique(np.concatenate([nothing, *(src for src, _ in self._splits.values())]))
        self._pairs = np.concatenate([nothing, *(pairs for _, pairs in self._splits.values())])

    def contains(self, src_keys: Hashes) -> npt.NDArray[np.bool_]:
        """Tell which training pairs have a source sentence of a held-out split."""
        # Not isin, which would sort the held-out hashes again for each batch.
        return np.searchsorted(self._src, src_keys, "left") < np.searchsorted(self._src, src_keys, "right")

    def found(self, src_keys: Hashes, pair_keys: Hashes) -> tuple[Hashes, Hashes]:
        """Return the held-out source sentences, and the pairs, that are among training pairs."""
        return np.intersect1d(src_keys, self._src), np.intersect1d(pair_keys, self._pairs)

    def report(self, src: set[int], pairs: set[int]) -> dict[str, Overlap]:
        """Return the overlap of each held-out split, given all that was found in the training text."""
        return {
            name: Overlap(
                sentences=sum(key in src for key in src_keys.tolist()),
                pairs=sum(key in pairs for key in pair_keys.tolist()),
            )
            for name, (src_keys, pair_keys) in self._splits.items()
        }


def held_out_hash(read: Path) -> str:
    """A hash of the held-out splits in the folder ``read``."""
    paths = [read / f"{name}.arrow" for name in _SPLITS]
    return " ".join(file_sha256(path) if path.exists() else "none" for path in paths)


@lru_cache(maxsize=1)
def load_held_out(read: Path, content: str) -> HeldOut:
    """The held-out splits in the folder ``read``. A worker keeps them while :func:`held_out_hash` stays the same."""
    del content
    return HeldOut(read)
