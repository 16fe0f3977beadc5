"""The state of the optimizer on disk: by parameter name, in fp32, in pieces that the ranks write side by side.

A piece is a range of the elements of a parameter, in the order of the flattened tensor. Which rank wrote which piece
does not matter for reading, so that any number of processes, at any ZeRO stage, can go on from the files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dstransformer.errors import DataError, shown
from dstransformer.io.files import file_sha256, sync
from dstransformer.model import save_weights

#: The kinds of tensors that every parameter has: the weight and Adam's two moments. ``EMA`` is there with
#: ``optimizer.ema_decay`` only.
WEIGHT, FIRST_MOMENT, SECOND_MOMENT, EMA = "weight", "exp_avg", "exp_avg_sq", "ema"
KINDS = (WEIGHT, FIRST_MOMENT, SECOND_MOMENT)


class Piece(NamedTuple):
    """A range of the elements of a parameter.

    Attributes:
        name: The parameter.
        start: The first element, counted in the flattened parameter.
        tensors: By kind, the elements in fp32, ``(elements,)`` each.
    """

    name: str
    start: int
    tensors: dict[str, Tensor]


def write_pieces(folder: Path, rank: int, pieces: Iterable[Piece]) -> dict[str, str]:
    """Write the pieces of a rank, and flush them to disk.

    Args:
        folder: A folder that exists.
        rank: The rank, which names the file.
        pieces: In CPU memory.

    Returns:
        The SHA-256 of the file by its name; nothing if there are no pieces.

    Raises:
        OSError: The file cannot be written.
    """
    named = {f"{kind}/{piece.name}/{piece.start}": tensor for piece in pieces for kind, tensor in piece.tensors.items()}
    if not named:
        return {}
    path = folder / f"rank-{rank:05d}.safetensors"
    save_weights(path, named)
    sync(path)
    return {path.name: file_sha256(path)}


class PieceReader:
    """Reads any range of any parameter from the files that some number of ranks wrote.

    A context manager. Files are mapped into memory, and only what is asked for is read.

    Args:
        folder: The folder of the files.

    Raises:
        DataError: A file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._ranges: dict[tuple[str, str], list[tuple[int, Any]]] = defaultdict(list)
        try:
            for path in sorted(folder.glob("rank-*.safetensors")):
                file = self._open.enter_context(safe_open(path, "pt"))
                for key in file.keys():  # noqa: SIM118  # not a dictionary
                    kind, name, start = key.split("/")
                    piece = file.get_slice(key)
                    (_,) = piece.get_shape()
                    self._ranges[kind, name].append((int(start), piece))
        except (SafetensorError, OSError, ValueError) as error:
            self._open.close()
            raise DataError(f"cannot resume from {folder}: {shown(error, quote=False, limit=300)}") from None
        for ranges in self._ranges.values():
            ranges.sort(key=lambda entry: entry[0])

    def __enter__(self) -> PieceReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    def check(self, sizes: Mapping[str, int], kinds: Iterable[str]) -> None:
        """Check that the files hold every element of these parameters once, and no other parameter.

        Args:
            sizes: Number of elements by parameter.
            kinds: The kinds that every parameter must have.

        Raises:
            DataError: They do not.
        """
        for kind in kinds:
            for name, size in sizes.items():
                end = 0
                for start, piece in self._ranges.get((kind, name), []):
                    if start < end:
                        raise DataError(
                            f"cannot resume from {self._folder}: its files hold element {start:,} of {kind} {name} "
                            "twice; remove files of another checkpoint, or copy it again"
                        )
                    if start > end:
                        break
                    end += piece.get_shape()[0]
                if end != size:
                    raise DataError(
                        f"cannot resume from {self._folder}: of {kind} {name} it has {end:,} of {size:,} elements"
                    )
        unknown = sorted({name for _, name in self._ranges} - sizes.keys())
        if unknown:
            raise DataError(f"cannot resume from {self._folder}: the model has no parameter {shown(unknown[0])}")

    @torch.no_grad()
    def read(self, kind: str, name: str, start: int, into: Tensor) -> None:
        """Read the elements of a parameter from ``start`` on into a tensor ``(elements,)``, on any device.

        Raises:
            DataError: They are not there.
        """
        end, missing = start + len(into), len(into)
        for first, piece in self._ranges.get((kind, name), []):
            begin, stop = max(start, first), min(end, first + piece.get_shape()[0])
            if begin < stop:
                into[begin - start : stop - start].copy_(piece[begin - first : stop - first])
                missing -= stop - begin
        if missing:
            raise DataError(f"cannot resume from {self._folder}: {missing:,} elements of {name} ({kind}) are missing")
