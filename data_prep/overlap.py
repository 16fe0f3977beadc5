"""Overlap of the training text with held-out text. It is always counted, and with ``--drop-overlap`` removed.

Sentences are compared in Unicode form NFKC, whatever ``--normalise`` is. Held-out sets are small, so their hashes are
kept in memory while the training text streams past.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_prep.pairs import Hashes, comparison_keys, iter_pairs
from dstransformer.corpus import Overlap


class _Seen:
    """A set of hashes, each marked once it has occurred."""

    def __init__(self, hashes: Iterable[Hashes]) -> None:
        self._hashes = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *hashes]))
        self._marked = np.zeros(len(self._hashes), dtype=bool)

    def contains(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Tell which of ``hashes`` are in the set."""
        if not len(self._hashes):
            return np.zeros(len(hashes), dtype=bool)
        found: npt.NDArray[np.bool_] = self._hashes[self._places(hashes)] == hashes
        return found

    def mark(self, hashes: Hashes) -> None:
        """Mark those of ``hashes`` that are in the set."""
        self._marked[self._places(hashes[self.contains(hashes)])] = True

    def _places(self, hashes: Hashes) -> npt.NDArray[np.intp]:
        return np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)

    def count(self, hashes: Hashes) -> int:
        """Count those of ``hashes`` that are marked."""
        return int(np.isin(hashes, self._hashes[self._marked]).sum())


@dataclass(frozen=True)
class _HeldOut:
    src: Hashes
    pairs: Hashes


class OverlapCounter:
    """Compares training text, batch by batch, with the held-out splits."""

    def __init__(self, read: Path) -> None:
        """Hash the held-out splits in the folder ``read``."""
        self._splits: dict[str, _HeldOut] = {}
        for path in (read / f"{name}.arrow" for name in ("validation", "test")):
            if path.exists():
                keys = [comparison_keys(batch) for batch in iter_pairs(path)]
                self._splits[path.stem] = _HeldOut(*(np.concatenate(part) for part in zip(*keys, strict=True)))
        self._src = _Seen(split.src for split in self._splits.values())
        self._pairs = _Seen(split.pairs for split in self._splits.values())

    def contains(self, src_keys: Hashes) -> npt.NDArray[np.bool_]:
        """Tell which training pairs have a source sentence of a held-out split, without counting them."""
        return self._src.contains(src_keys)

    def count(self, src_keys: Hashes, pair_keys: Hashes) -> None:
        """Count training pairs."""
        self._src.mark(src_keys)
        self._pairs.mark(pair_keys)

    def report(self) -> dict[str, Overlap]:
        """Return the overlap of each held-out split with the training pairs counted so far."""
        return {
            name: Overlap(sentences=self._src.count(split.src), pairs=self._pairs.count(split.pairs))
            for name, split in self._splits.items()
        }


def describe_overlap(name: str, overlap: Overlap, size: int) -> str:
    """Describe the overlap of the split ``name``, which has ``size`` pairs, in one line."""
    return (
        f"{overlap.sentences:,} of {size:,} {name} sentences ({overlap.sentences / size:.1%}) are in the training "
        f"text, {overlap.pairs:,} of them with the same translation"
    )
