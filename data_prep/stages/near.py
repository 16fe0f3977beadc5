"""Near duplicates: training pairs whose text is nearly that of an earlier pair.

Likeness is the Jaccard index of the sets of shingles, short pieces of the text. MinHash with locality-sensitive hashing
finds candidates without comparing each pair with every other (Broder, 1997; Leskovec, Rajaraman and Ullman, *Mining of
Massive Datasets*, chapter 3). Then the texts of the candidates are compared, so no pair is dropped that is less like an
earlier one than the threshold says. How all pairs are searched stands in :mod:`data_prep.stages.near_search`.
"""

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.recipe.options import CleanOptions
from data_prep.store.pairs import Hashes
from dstransformer.errors import ConfigError

#: Hash functions of a signature, and the share of pairs just at the threshold that may be missed.
HASHES = 128
MISSED = 0.02

# rensa starts threads from 256 rows on, which a process forked later would lack.
_SIGNATURE_ROWS = 200

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


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


def hash_bands(table: pa.Table, options: CleanOptions) -> Hashes:
    """Hash each band of the MinHash signature of each text, ``(pairs, bands)``."""
    assert options.near_duplicates is not None
    bands, size = choose_bands(options.near_duplicates)
    shingles = [shingle(text, options) for text in compared_texts(table, options)]
    signatures = sign(shingles, bands * size, options.near_seed).reshape(len(shingles), bands, size)
    factors = np.random.default_rng(options.near_seed).integers(1 << 63, size=size, dtype=np.uint64) * 2 + 1
    keys: Hashes = (signatures * factors).sum(axis=2, dtype=np.uint64)
    return keys


def sign(sets: list[list[str]], hashes: int, seed: int) -> npt.NDArray[np.uint64]:
    """Compute MinHash signatures, ``(sets, hashes)``, of values of 32 bits."""
    minhash = load_minhash()
    values = array("I")
    for begin in range(0, len(sets), _SIGNATURE_ROWS):
        part = sets[begin : begin + _SIGNATURE_ROWS]
        for row in minhash.digest_matrix_from_token_sets(part, hashes, seed).to_rows():
            values.fromlist(row)
    return np.frombuffer(values, dtype=np.uint32).astype(np.uint64).reshape(len(sets), hashes)


def jaccard(one: str, other: str, options: CleanOptions) -> float:
    """The number of different shingles that two texts share, over that of those in either."""
    left, right = set(shingle(one, options)), set(shingle(other, options))
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


def enter(keys: Hashes, first: int, bits: int) -> tuple[Hashes, npt.NDArray[np.int64]]:
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
        entries: Those of a bucket, as :func:`enter` makes them; they are sorted in place.

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


def split_candidates(pairs: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows of candidates, ``(candidates,)``, and the earlier rows."""
    return (pairs >> _HALF).astype(np.int64), (pairs & _LOW).astype(np.int64)


def first_candidates(rows: npt.NDArray[np.int64]) -> Hashes:
    """The least candidates that rows can have: those of a row follow its own and stand before the next one's."""
    return rows.astype(np.uint64) << _HALF


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
