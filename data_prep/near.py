"""Near duplicates: training pairs whose text is nearly that of an earlier pair.

Likeness is the Jaccard index of the sets of shingles, short pieces of the text. MinHash with locality-sensitive hashing
finds candidates without comparing each pair with every other (Broder, 1997; Leskovec, Rajaraman and Ullman, *Mining of
Massive Datasets*, chapter 3). Then the texts of the candidates are compared, so no pair is dropped that is less like an
earlier one than the threshold says. The hashes are sorted on disk, bucket by bucket; memory holds one bucket.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.options import CleanOptions
from data_prep.pairs import SCHEMA, Hashes, PairsWriter, count_pairs, map_pairs, take_pairs
from data_prep.workers import Workers
from dstransformer.errors import ConfigError
from dstransformer.progress import Advance, Progress

#: Hash functions of a signature, and the share of pairs just at the threshold that may be missed.
HASHES = 128
MISSED = 0.02

# Entries of a bucket, of 8 bytes each: few enough to sort in memory.
_BUCKET_ENTRIES = 1 << 22

# Rows whose band hashes are collected before they are written to the buckets.
_BUFFERED_ROWS = 200_000

# Candidates that are compared together, at least; and those whose texts are looked up at once.
_COMPARED = 100_000
_LOOKED_UP = 20_000

# rensa starts threads from 256 rows on, which a process forked later would lack.
_SIGNATURE_ROWS = 200

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def find_near_duplicates(path: Path, options: CleanOptions, workers: Workers, progress: Progress) -> Mask:
    """Find the pairs that are like an earlier pair, which may itself be like one before it.

    Args:
        path: A file of pairs. Files beside it hold the hashes; they are removed.
        options: ``near_duplicates`` is the least Jaccard index of two texts that are alike.
        workers: Who does it; the result does not depend on them.
        progress: Shows what is done.

    Returns:
        Whether each pair is a near duplicate, ``(pairs,)``.
    """
    total = count_pairs(path)
    if total >= 1 << 32:  # rows are numbered with 32 bits
        raise ConfigError(f"--near-duplicates: {total:,} pairs are too many, at most {(1 << 32) - 1:,}: leave it out")
    dropped = np.zeros(total, dtype=bool)
    buckets = _Buckets(path.parent, total)
    with progress.task("hash for near duplicates", total) as advance:
        for table in map_pairs(path, hash_bands, workers, advance, options=options):
            buckets.add(table["keys"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1))
        buckets.flush()
    with progress.task("compare near duplicates") as advance:
        waiting = np.empty(0, dtype=np.uint64)
        for entries in buckets.drain():
            waiting = np.union1d(waiting, find_candidates(entries, dropped))
            if len(waiting) >= _COMPARED:
                dropped[_compare(path, waiting, options, workers, advance)] = True
                waiting = waiting[:0]
        dropped[_compare(path, waiting, options, workers, advance)] = True
    return dropped


def _compare(path: Path, pairs: Hashes, options: CleanOptions, workers: Workers, advance: Advance) -> Rows:
    """Compare the texts of candidates, rows with earlier rows; return the rows that are near duplicates."""
    rows = np.column_stack([pairs >> _HALF, pairs & _LOW]).astype(np.int64)
    candidates = path.with_name("candidates.arrow")
    _write_candidates(path, candidates, rows, options.near_text)
    compared = map_pairs(candidates, compare_texts, workers, advance, options=options)
    alike = [table["alike"].to_numpy() for table in compared]
    candidates.unlink()
    near: Rows = rows[np.concatenate([np.empty(0, dtype=bool), *alike]), 0]
    return near


def choose_bands(threshold: float) -> tuple[int, int]:
    """Divide the hashes into bands of equal size; texts that agree on all hashes of a band are candidates.

    Two texts of Jaccard index *s* agree on a band of *r* hashes with probability s^r, and on none of *b* bands with
    (1 - s^r)^b.

    Returns:
        The number of bands, and of hashes in each, the largest that misses at most :data:`MISSED` of the texts just at
        the threshold.
    """
    sizes = [size for size in range(1, HASHES + 1) if (1 - threshold**size) ** (HASHES // size) <= MISSED]
    return HASHES // max(sizes), max(sizes)


def shingle(text: str, options: CleanOptions) -> list[str]:
    """Cut a text into its overlapping shingles, in lower case; a text shorter than one is its only shingle."""
    text, size = text.casefold(), options.near_size
    if options.near_shingles == "chars":
        return [text[begin : begin + size] for begin in range(max(len(text) - size, 0) + 1)]
    words = text.split()
    return [" ".join(words[begin : begin + size]) for begin in range(max(len(words) - size, 0) + 1)]


def hash_bands(table: pa.Table, options: CleanOptions) -> pa.Table:
    """Hash each band of the MinHash signature of each text.

    Returns:
        The column ``keys``, of one hash of 64 bits for each band.
    """
    assert options.near_duplicates is not None
    bands, size = choose_bands(options.near_duplicates)
    shingles = [shingle(text, options) for text in _texts(table, options.near_text).to_pylist()]
    signatures = sign(shingles, bands * size, options.near_seed).reshape(len(shingles), bands, size)
    factors = np.random.default_rng(options.near_seed).integers(1 << 63, size=size, dtype=np.uint64) * 2 + 1
    keys = (signatures * factors).sum(axis=2, dtype=np.uint64)
    return pa.table({"keys": pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), bands)})


def sign(sets: list[list[str]], hashes: int, seed: int) -> npt.NDArray[np.uint64]:
    """Compute MinHash signatures, ``(sets, hashes)``, of values of 32 bits."""
    minhash = load_minhash()
    parts = (sets[begin : begin + _SIGNATURE_ROWS] for begin in range(0, len(sets), _SIGNATURE_ROWS))
    rows = [row for part in parts for row in minhash.digest_matrix_from_token_sets(part, hashes, seed).to_rows()]
    return np.array(rows, dtype=np.uint64)


def compare_texts(table: pa.Table, options: CleanOptions) -> pa.Table:
    """Tell, in the column ``alike``, whether the Jaccard index of ``src`` and ``tgt`` reaches the threshold."""
    assert options.near_duplicates is not None
    alike = []
    for one, other in zip(table["src"].to_pylist(), table["tgt"].to_pylist(), strict=True):
        alike.append(jaccard(one, other, options) >= options.near_duplicates)
    return pa.table({"alike": pa.array(alike, pa.bool_())})


def jaccard(one: str, other: str, options: CleanOptions) -> float:
    """The number of different shingles that two texts share, over that of those in either."""
    left, right = set(shingle(one, options)), set(shingle(other, options))
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


class _Buckets:
    """Band hashes on disk: for each band a file for each range of hashes, of entries of key (high bits) and row."""

    def __init__(self, folder: Path, total: int) -> None:
        self._folder = folder
        for left in folder.glob("near-*.bucket"):  # by a run that was killed
            left.unlink()
        self._bits = max(-(-total // _BUCKET_ENTRIES) - 1, 0).bit_length()
        self._waiting: list[Hashes] = []
        self._rows = self._written = self._bands = 0

    def add(self, keys: Hashes) -> None:
        """Add the hashes of the next rows, ``(rows, bands)``."""
        self._waiting.append(keys)
        self._rows += len(keys)
        self._bands = keys.shape[1]
        if self._rows - self._written >= _BUFFERED_ROWS:
            self.flush()

    def flush(self) -> None:
        """Append what was added to the files."""
        if not self._waiting:
            return
        keys = np.concatenate(self._waiting)
        rows = np.arange(self._written, self._rows, dtype=np.uint64)
        self._waiting, self._written = [], self._rows
        for band in range(self._bands):
            number = keys[:, band] >> np.uint64(63 - self._bits) >> np.uint64(1)
            entries = (keys[:, band] >> np.uint64(32 - self._bits) & _LOW) << _HALF | rows
            for part in range(1 << self._bits):
                with self._path(band, part).open("ab") as file:
                    file.write(entries[number == part].tobytes())

    def drain(self) -> Iterator[Hashes]:
        """Iterate over the buckets, each sorted by key and row; each file is removed."""
        for band in range(self._bands):
            for part in range(1 << self._bits):
                path = self._path(band, part)
                entries = np.fromfile(path, dtype=np.uint64)
                path.unlink()
                entries.sort()
                yield entries

    def _path(self, band: int, part: int) -> Path:
        return self._folder / f"near-{band:03d}-{part:05d}.bucket"


def find_candidates(entries: Hashes, dropped: Mask) -> Hashes:
    """Find rows to compare: each with the first row of the same key, and with the one before it.

    Args:
        entries: Keys (high bits) and rows, sorted.
        dropped: Rows that are known to be near duplicates; they are not compared with earlier ones again.

    Returns:
        Rows (high bits) and earlier rows.
    """
    keys, rows = entries >> _HALF, entries & _LOW
    begins = np.concatenate([[True], keys[1:] != keys[:-1]])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
    later = np.flatnonzero(~begins & ~dropped[rows])
    return np.concatenate([rows[later] << _HALF | rows[partner] for partner in (first[later], later - 1)])


def _write_candidates(path: Path, target: Path, pairs: Rows, side: str) -> None:
    """Write the texts of the candidates as pairs. The file is mapped anew each time, or all of it would stay mapped."""
    with PairsWriter(target, durable=False) as writer:
        for begin in range(0, len(pairs), _LOOKED_UP):
            rows, places = np.unique(pairs[begin : begin + _LOOKED_UP], return_inverse=True)
            texts = _texts(take_pairs(path, rows), side).combine_chunks()
            src, tgt = (texts.take(pa.array(column)) for column in places.reshape(-1, 2).T)
            nothing = np.zeros(len(src), dtype=np.uint16)
            writer.write(pa.table([src, tgt, nothing, nothing.astype(bool)], schema=SCHEMA))


def _texts(table: pa.Table, side: str) -> pa.ChunkedArray:
    """What is compared of each pair: ``src``, ``tgt``, or both sides, one after the other."""
    return pc.binary_join_element_wise(table["src"], table["tgt"], "\n") if side == "both" else table[side]


def load_minhash() -> Any:
    """Load the MinHash of ``rensa``.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        from rensa import RMinHash
    except ImportError:
        raise ConfigError(
            "--near-duplicates needs rensa: install it with `pip install 'dstransformer[clean]'`"
        ) from None
    return RMinHash
