"""A file of numbers of 64 bits in slices, each of which can be read without the others.

A table of where the slices begin stands first: counts of slices stay with whoever wrote them, and need not be known to
whoever brings the work about.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]

_BYTES = 8


def write_slices(path: Path, slices: int, parts: Iterable[tuple[Numbers, npt.NDArray[np.int64]]]) -> None:
    """Write slices.

    Args:
        path: The file.
        slices: Their number.
        parts: Numbers of consecutive slices, and how many each of these slices has. All parts have all slices.
    """
    sizes = [np.array([slices + 1], dtype=np.int64)]  # the first slice follows the table
    with path.open("wb") as file:
        file.seek(_BYTES * (slices + 1))
        for numbers, counts in parts:
            file.write(np.ascontiguousarray(numbers).data)
            sizes.append(counts)
        file.seek(0)
        file.write(np.cumsum(np.concatenate(sizes), dtype=np.int64).data)


def read_slice(path: Path, number: int) -> Numbers:
    """Read a slice."""
    with path.open("rb") as file:
        file.seek(_BYTES * number)
        begin, end = np.frombuffer(file.read(2 * _BYTES), dtype=np.int64).tolist()
        file.seek(_BYTES * begin)
        return np.frombuffer(file.read(_BYTES * (end - begin)), dtype=np.uint64)
