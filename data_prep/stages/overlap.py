"""Overlap of the training text with held-out text. It is always counted, and with ``--drop-overlap`` removed.

Sentences are compared in Unicode form NFKC, whatever ``--normalise`` is. Held-out sets are small, so their hashes are
kept in memory while the training text is read.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_prep.stages.text import Hashes, comparison_keys
from data_prep.store.pairs import iter_pairs
from dstransformer.data import Overlap
from dstransformer.io.files import file_sha256

_SPLITS = ("validation", "test")


class HeldOut:
    """The hashes of the held-out splits, with which training text is compared."""

    def __init__(self, read: Path) -> None:
        """Hash the held-out splits in the folder ``read``."""
        self._splits: dict[str, tuple[Hashes, Hashes]] = {}  # of source sentences, and of pairs
        for path in (read / f"{name}.arrow" for name in _SPLITS):
            if path.exists():
                src, pairs = zip(*(comparison_keys(batch) for batch in iter_pairs(path)), strict=True)
                self._splits[path.stem] = np.concatenate(src), np.concatenate(pairs)
        self._src = _distinct(src for src, _ in self._splits.values())
        self._pairs = _distinct(pairs for _, pairs in self._splits.values())

    def contains(self, src_keys: Hashes) -> npt.NDArray[np.bool_]:
        """Tell which training pairs have a source sentence of a held-out split."""
        return _contains(self._src, src_keys)

    def found(self, src_keys: Hashes, pair_keys: Hashes) -> tuple[Hashes, Hashes]:
        """Return the held-out source sentences, and the pairs, that are among training pairs."""
        src, pairs = (
            np.unique(keys[_contains(own, keys)]) for own, keys in ((self._src, src_keys), (self._pairs, pair_keys))
        )
        return src, pairs

    def report(self, src: set[int], pairs: set[int]) -> dict[str, Overlap]:
        """Return the overlap of each held-out split, given all that was found in the training text."""
        return {
            name: Overlap(sentences=_count(own_src, src), pairs=_count(own_pairs, pairs))
            for name, (own_src, own_pairs) in self._splits.items()
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


def _distinct(hashes: Iterable[Hashes]) -> Hashes:
    return np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *hashes]))


def _contains(own: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Tell which of ``hashes`` are among ``own``, which is sorted."""
    if not len(own):
        return np.zeros(len(hashes), dtype=bool)
    places = np.minimum(np.searchsorted(own, hashes), len(own) - 1)
    found: npt.NDArray[np.bool_] = own[places] == hashes
    return found


def _count(hashes: Hashes, found: set[int]) -> int:
    return sum(key in found for key in hashes.tolist())
