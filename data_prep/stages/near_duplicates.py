"""Near duplicates: training pairs whose text is nearly that of an earlier pair.

Similarity is the Jaccard index of the sets of shingles, short substrings of the text. MinHash with locality-sensitive
hashing finds candidates without comparing each pair with every other (Broder, 1997; Leskovec, Rajaraman and Ullman,
*Mining of Massive Datasets*, chapter 3). Then the texts of the candidates are compared, so no pair is dropped whose
Jaccard index with an earlier one is below the threshold.

The search takes bounded memory and any number of machines. The hashes of each chunk lie in its folder, in buckets
(:func:`split_into_buckets`). A worker takes one bucket, of all chunks, and writes which rows are to be compared with
which, in the order of the rows. Then a worker takes one chunk, with the candidates of its rows from all buckets,
compares texts, and writes the pairs that are left. Each step reads what the one before wrote in the work folder, so an
interrupted search resumes from its chunks.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.recipe.options import CleanOptions
from data_prep.stages.dedup import Distinct, read_slice, write_slices
from data_prep.stages.text import Hashes
from data_prep.store.chunks import Report, chunk_folder, write_chunk
from data_prep.store.pairs import (
    Chunk,
    Index,
    Kept,
    cut_pairs,
    index_pairs,
    iter_chunk,
    merge_examples,
    take_pairs,
    write_kept,
)
from data_prep.workers import Workers, run_tasks
from dstransformer.errors import ConfigError
from dstransformer.io.files import file_sha256
from dstransformer.io.progress import Progress

#: Hash functions of a signature, and the maximum share of pairs just at the threshold that are missed.
HASHES = 128
MAX_MISSED = 0.02

# rensa starts threads from 256 rows on, which a process forked later would lack.
_SIGNATURE_ROWS = 200

# Entries of a bucket, about: 134 MB, and some four times as much where most rows share a hash with another.
_BUCKET_ENTRIES = 1 << 24

# Maximum candidates whose texts are looked up at a time.
_MAX_LOOKUPS = 20_000

#: In the folder of a chunk: the entries of its rows; candidates; the pairs that are left; where the batches are.
_ENTRIES, _CANDIDATES, _PAIRS, _INDEX = "entries", "candidates", "pairs.arrow", "index"

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def choose_bands(threshold: float) -> tuple[int, int]:
    """Divide the hashes into bands of equal size; texts that agree on all hashes of a band are candidates.

    Two texts of Jaccard index *s* agree on a band of *r* hashes with probability s^r, and on none of *b* bands with
    (1 - s^r)^b.

    Returns:
        The number of bands, and of hashes in each: the largest that misses at most a share of :data:`MAX_MISSED` of
        the texts just at the threshold.
    """
    sizes = [size for size in range(1, HASHES + 1) if (1 - threshold**size) ** (HASHES // size) <= MAX_MISSED]
    return HASHES // max(sizes), max(sizes)


def shingle(text: str, options: CleanOptions) -> list[str]:
    """Cut a text into its overlapping shingles, in form NFKC and lower case; a shorter text is its only shingle."""
    text, size = unicodedata.normalize("NFKC", text).casefold(), options.near_size
    if options.near_shingles == "chars":
        return [text[begin : begin + size] for begin in range(max(len(text) - size, 0) + 1)]
    words = text.split()
    return [" ".join(words[begin : begin + size]) for begin in range(max(len(words) - size, 0) + 1)]


def hash_bands(table: pa.Table, options: CleanOptions) -> Hashes:
    """Hash each band of the MinHash signature of each text, ``(pairs, bands)``."""
    assert options.near_duplicates is not None
    bands, size = choose_bands(options.near_duplicates)
    shingles = [shingle(text, options) for text in compared_texts(table, options)]
    signatures = minhash(shingles, bands * size, options.near_seed).reshape(len(shingles), bands, size)
    factors = np.random.default_rng(options.near_seed).integers(1 << 63, size=size, dtype=np.uint64) * 2 + 1
    keys: Hashes = (signatures * factors).sum(axis=2, dtype=np.uint64)
    return keys


def minhash(sets: list[list[str]], hashes: int, seed: int) -> npt.NDArray[np.uint64]:
    """Compute MinHash signatures, ``(sets, hashes)``, of values of 32 bits."""
    rensa_minhash = load_minhash()
    values = array("I")
    for begin in range(0, len(sets), _SIGNATURE_ROWS):
        part = sets[begin : begin + _SIGNATURE_ROWS]
        for row in rensa_minhash.digest_matrix_from_token_sets(part, hashes, seed).to_rows():
            values.fromlist(row)
    return np.frombuffer(values, dtype=np.uint32).astype(np.uint64).reshape(len(sets), hashes)


def jaccard(one: str, other: str, options: CleanOptions) -> float:
    """The number of different shingles that two texts share, over that of those in either."""
    left, right = set(shingle(one, options)), set(shingle(other, options))
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


def split_into_buckets(keys: Hashes, first: int, bits: int) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Divide the hashes of a band among buckets, by their first bits.

    Args:
        keys: Hashes of consecutive rows, ``(rows,)``.
        first: The number of the first row.
        bits: The bits that the hashes of a bucket have in common.

    Returns:
        Entries, a hash without these bits (high bits) and a row, bucket by bucket, ``(rows,)``; the number of those in
        each bucket, ``(2**bits,)``.
    """
    rows = np.arange(first, first + len(keys), dtype=np.uint64)
    entries = (keys >> np.uint64(32 - bits) & _LOW) << _HALF | rows
    if not bits:
        return entries, np.array([len(keys)])
    buckets = (keys >> np.uint64(64 - bits)).astype(np.int64)
    return entries[np.argsort(buckets, kind="stable")], np.bincount(buckets, minlength=1 << bits)


def find_candidates(entries: Hashes) -> Hashes:
    """Find rows to compare: each with the first row of the same hash, and with the one before it.

    Args:
        entries: Those of a bucket, as :func:`split_into_buckets` returns them; they are sorted in place.

    Returns:
        Rows (high bits) and earlier rows, sorted.
    """
    entries.sort()
    same = entries[1:] >> _HALF == entries[:-1] >> _HALF  # as the one before
    shared = np.zeros(len(entries), dtype=bool)
    shared[1:] = same
    shared[:-1] |= same
    entries = entries[shared]
    begins = np.ones(len(entries), dtype=bool)
    begins[1:] = entries[1:] >> _HALF != entries[:-1] >> _HALF
    rows = (entries & _LOW).astype(np.uint32)
    later = np.flatnonzero(~begins)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))[later]
    between = later[first != later - 1]
    pairs = np.concatenate([_pair(rows[later], rows[first]), _pair(rows[between], rows[between - 1])])
    pairs.sort()
    return pairs


def _pair(rows: npt.NDArray[np.uint32], others: npt.NDArray[np.uint32]) -> Hashes:
    return rows.astype(np.uint64) << _HALF | others


def compared_texts(table: pa.Table, options: CleanOptions) -> list[str]:
    """What is compared of each pair: ``src``, ``tgt``, or both sides, one after the other."""
    side = options.near_text
    both = pc.binary_join_element_wise(table["src"], table["tgt"], "\n") if side == "both" else table[side]
    texts: list[str] = both.to_pylist()
    return texts


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


@dataclass(frozen=True)
class _Search:
    """What a worker needs: the pairs, the folder of the chunks, the hash of the index, the options, and how many
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

    def chunk(self, step: str, number: int) -> Path:
        return chunk_folder(self.root, step, number)


def drop_near_duplicates(
    path: Path, root: Path, parts: int, options: CleanOptions, workers: Workers, progress: Progress
) -> Distinct:
    """Drop the pairs that are similar to an earlier pair, which may itself be a near duplicate.

    Args:
        path: A file of pairs.
        root: The folder of the chunks.
        parts: The number of parts of the pairs.
        options: ``near_duplicates`` is the Jaccard index from which on two texts count as near duplicates.
        workers: Where the tasks run; the result does not depend on it.
        progress: Shows what is done.

    Raises:
        ConfigError: There are 2^32 pairs or more.
    """
    index = index_pairs(path)
    total = int(index.firsts[-1])
    if total >= 1 << 32:  # rows are numbered with 32 bits
        raise ConfigError(f"--near-duplicates: {total:,} pairs are too many, at most {(1 << 32) - 1:,}: leave it out")
    bits = max(-(-total // _BUCKET_ENTRIES) - 1, 0).bit_length()
    indexed = chunk_folder(root, "index", 0)
    write_chunk(indexed, Report, partial(_write_index, index))
    search = _Search(path, root, file_sha256(indexed / _INDEX), options, parts, bits)
    chunks = cut_pairs(path, index)
    with (
        progress.task("hash for near duplicates", total) as advance,
        run_tasks(partial(_hash_chunk, search), chunks, workers) as hashed,
    ):
        for chunk, _ in zip(chunks, hashed, strict=True):
            advance(chunk.rows)
    with (
        progress.task("sort hashes in buckets", search.buckets) as advance,
        run_tasks(partial(_pair_bucket, search), range(search.buckets), workers) as paired,
    ):
        for _ in paired:
            advance(1)
    dropped, examples = np.zeros(parts, dtype=np.int64), list[tuple[str, str]]()
    with (
        progress.task("drop near duplicates", total) as advance,
        run_tasks(partial(_drop_similar, search), chunks, workers) as results,
    ):
        for chunk, report in zip(chunks, results, strict=True):
            dropped += report.dropped
            merge_examples(examples, report.examples)
            advance(chunk.rows)
    return Distinct([search.chunk("distinct", chunk.number) / _PAIRS for chunk in chunks], dropped, examples)


def _write_index(index: Index, folder: Path) -> Report:
    np.concatenate([index.offsets, index.firsts]).tofile(folder / _INDEX)
    return Report()


@lru_cache(maxsize=1)
def _load_index(root: Path, content: str) -> Index:
    """The index of the pairs. A worker keeps it while its hash, ``content``, stays the same."""
    del content
    numbers = np.fromfile(chunk_folder(root, "index", 0) / _INDEX, dtype=np.int64)
    return Index(*np.split(numbers, [len(numbers) // 2]))


def _hash_chunk(search: _Search, chunk: Chunk) -> Report:
    """Write the entries of a chunk, in the order of the buckets: band after band."""

    def write(folder: Path) -> Report:
        keys = np.concatenate([hash_bands(table, search.options) for table in iter_chunk(chunk)])
        bands = (split_into_buckets(band, chunk.first, search.bits) for band in keys.T)
        write_slices(folder / _ENTRIES, search.buckets, bands)
        return Report()

    return write_chunk(search.chunk("hashed", chunk.number), Report, write)


def _pair_bucket(search: _Search, number: int) -> Report:
    """Write the candidates of a bucket, in the order of the chunks of their later rows."""

    def write(folder: Path) -> Report:
        chunks = cut_pairs(search.path, _load_index(search.root, search.index))
        paths = (search.chunk("hashed", chunk.number) / _ENTRIES for chunk in chunks)
        candidates = find_candidates(np.concatenate([read_slice(path, number, np.uint64) for path in paths]))
        firsts = np.array([chunk.first for chunk in chunks], dtype=np.uint64) << _HALF
        counts = np.diff(np.searchsorted(candidates, firsts), append=len(candidates))
        write_slices(folder / _CANDIDATES, len(chunks), [(candidates, counts)])
        return Report()

    return write_chunk(search.chunk("paired", number), Report, write)


def _drop_similar(search: _Search, chunk: Chunk) -> Kept:
    """Write the pairs of a chunk that are not near duplicates."""
    threshold = search.options.near_duplicates
    assert threshold is not None

    def write(folder: Path) -> Kept:
        paths = (search.chunk("paired", number) / _CANDIDATES for number in range(search.buckets))
        candidates = np.unique(np.concatenate([read_slice(path, chunk.number, np.uint64) for path in paths]))
        distinct = np.ones(chunk.rows, dtype=np.bool_)
        for row, text, other in _iter_texts(search, candidates):
            # The other candidates of a row that is similar to one are skipped.
            if distinct[row - chunk.first] and jaccard(text, other, search.options) >= threshold:
                distinct[row - chunk.first] = False
        return write_kept(iter_chunk(chunk), distinct, folder / _PAIRS, search.parts)

    return write_chunk(search.chunk("distinct", chunk.number), Kept, write)


def _iter_texts(search: _Search, candidates: Hashes) -> Iterator[tuple[int, str, str]]:
    """Each candidate row, with its text and that of the earlier row. The file is mapped for a batch at a time."""
    index = _load_index(search.root, search.index)
    for begin in range(0, len(candidates), _MAX_LOOKUPS):
        pairs = candidates[begin : begin + _MAX_LOOKUPS]
        sides = (pairs >> _HALF).astype(np.int64), (pairs & _LOW).astype(np.int64)
        rows, places = np.unique(np.concatenate(sides), return_inverse=True)
        texts = compared_texts(take_pairs(search.path, rows, index), search.options)
        here, there = places.reshape(2, -1).tolist()
        for row, one, other in zip(sides[0].tolist(), here, there, strict=True):
            yield row, texts[one], texts[other]
