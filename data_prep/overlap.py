"""Held-out text that is in the training text too: counted for every corpus, and left out of training where asked.

Sentences count as equal when they are after Unicode normalisation, whatever ``--normalise`` says. Held-out sets are
small, so their hashes are kept in memory; the training text streams past them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_prep.pairs import iter_pairs
from data_prep.sentences import Hashes, comparison_keys
from dstransformer.corpus import Overlap


class _Seen:
    """A set of hashes of which some have been met."""

    def __init__(self, hashes: Iterable[Hashes]) -> None:
        self._hashes = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *hashes]))
        self._met = np.zeros(len(self._hashes), dtype=bool)

    def contains(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which of ``hashes`` are in the set."""
        if not len(self._hashes):
            return np.zeros(len(hashes), dtype=bool)
        found: npt.NDArray[np.bool_] = self._hashes[self._places(hashes)] == hashes
        return found

    def meet(self, hashes: Hashes) -> None:
        """Those of ``hashes`` that are in the set have been met."""
        self._met[self._places(hashes[self.contains(hashes)])] = True

    def _places(self, hashes: Hashes) -> npt.NDArray[np.intp]:
        return np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)

    def count(self, hashes: Hashes) -> int:
        """How many of ``hashes`` have been met."""
        return int(np.isin(hashes, self._hashes[self._met]).sum())


@dataclass(frozen=True)
class _HeldOut:
    src: Hashes
    pairs: Hashes


class OverlapCounter:
    """Compares training text, batch by batch, with the held-out splits."""

    def __init__(self, read: Path) -> None:
        """Take the held-out splits in the folder ``read``."""
        self._splits: dict[str, _HeldOut] = {}
        for path in (read / f"{name}.arrow" for name in ("validation", "test")):
            if path.exists():
                keys = [comparison_keys(batch) for batch in iter_pairs(path)]
                self._splits[path.stem] = _HeldOut(*(np.concatenate(part) for part in zip(*keys, strict=True)))
        self._src = _Seen(split.src for split in self._splits.values())
        self._pairs = _Seen(split.pairs for split in self._splits.values())

    def contains(self, src_keys: Hashes) -> npt.NDArray[np.bool_]:
        """Which training pairs have a source sentence of a held-out split; nothing is counted."""
        return self._src.contains(src_keys)

    def count(self, src_keys: Hashes, pair_keys: Hashes) -> None:
        """Count training pairs."""
        self._src.meet(src_keys)
        self._pairs.meet(pair_keys)

    def report(self) -> dict[str, Overlap]:
        """What has been found, by split."""
        return {
            name: Overlap(sentences=self._src.count(split.src), pairs=self._pairs.count(split.pairs))
            for name, split in self._splits.items()
        }


def describe_overlap(name: str, overlap: Overlap, size: int) -> str:
    """One line on the overlap of the split ``name`` with ``size`` pairs."""
    return (
        f"{overlap.sentences:,} of {size:,} {name} sentences ({overlap.sentences / size:.1%}) are in the training "
        f"text, {overlap.pairs:,} of them with the same translation"
    )
