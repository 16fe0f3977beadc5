"""The state of the optimizer on disk: by parameter name, in fp32, in shards that the ranks write side by side.

A shard is a range of the elements of a parameter, in the order of the flattened tensor. Which rank wrote which shard
does not matter for reading, so that any number of processes, at any ZeRO stage, can resume from the files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dstransformer.errors import DataError, shown
from dstransformer.io.files import file_sha256, sync
from dstransformer.model import save_weights

#: The kinds of tensors beside the moments of the optimizer: the weight, and the moving average, which exists only with
#: ``optimizer.ema_decay``.
WEIGHT, EMA = "weight", "ema"


class Shard(NamedTuple):
    """A range of the elements of a parameter.

    Attributes:
        name: The parameter.
        start: The first element, counted in the flattened parameter.
        tensors: By kind, the elements in fp32, ``(elements,)`` each.
    """

    name: str
    start: int
    tensors: dict[str, Tensor]


def write_shards(folder: Path, rank: int, shards: Iterable[Shard]) -> dict[str, str]:
    """Write the shards of a rank, which are in CPU memory, and flush them to disk.

    Returns:
        The SHA-256 of the file by its name; nothing if there are no shards.

    Raises:
        OSError: The file cannot be written.
    """
    named = {f"{kind}/{shard.name}/{shard.start}": tensor for shard in shards for kind, tensor in shard.tensors.items()}
    if not named:
        return {}
    path = folder / f"rank-{rank:05d}.safetensors"
    save_weights(path, named)
    sync(path)
    return {path.name: file_sha256(path)}


class ShardReader(ExitStack):
    """Reads any range of any parameter from the files that some number of ranks wrote.

    A context manager. Files are mapped into memory, and only the requested ranges are read.

    Args:
        folder: The folder of the files.

    Raises:
        DataError: The folder does not exist, or a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"cannot resume from {folder}: it does not exist, or this node cannot see it")
        super().__init__()
        self._folder = folder
        self._ranges: dict[tuple[str, str], list[tuple[int, Any]]] = defaultdict(list)
        try:
            for path in sorted(folder.glob("rank-*.safetensors")):
                file = self.enter_context(safe_open(path, "pt"))
                for key in file.keys():  # noqa: SIM118  # not a dictionary
                    kind, name, start = key.split("/")
                    shard = file.get_slice(key)
                    (_,) = shard.get_shape()
                    self._ranges[kind, name].append((int(start), shard))
        except (SafetensorError, OSError, ValueError) as error:
            self.close()
            raise DataError(f"cannot resume from {folder}: {shown(error, quote=False, limit=300)}") from None
        for ranges in self._ranges.values():
            ranges.sort(key=lambda entry: entry[0])

    def check(self, sizes: Mapping[str, int], kinds: Mapping[str, Iterable[str]]) -> None:
        """Check that the files hold every element of these parameters once, of these kinds, and no other parameter.

        Raises:
            DataError: Elements are missing or repeated, or the model lacks a parameter.
        """
        for name, size in sizes.items():
            for kind in kinds[name]:
                end = 0
                for start, shard in self._ranges.get((kind, name), []):
                    if start < end:
                        raise DataError(
                            f"cannot resume from {self._folder}: its files hold element {start:,} of {kind} {name} "
                            "twice; remove files of another checkpoint, or copy it again"
                        )
                    if start > end:
                        break
                    end += shard.get_shape()[0]
                if end != size:
                    raise DataError(
                        f"cannot resume from {self._folder}: of {kind} {name} it has {end:,} of {size:,} elements; "
                        "copy it again, or resume from an earlier checkpoint"
                    )
        unknown = sorted({name for _, name in self._ranges} - sizes.keys())
        if unknown:
            raise DataError(f"cannot resume from {self._folder}: the model has no parameter {shown(unknown[0])}")

    @torch.no_grad()
    def read(self, kind: str, name: str, start: int, into: Tensor) -> None:
        """Read the elements of a parameter from ``start`` on into a tensor ``(elements,)``, on any device.

        Raises:
            DataError: Elements are missing.
        """
        end, missing = start + len(into), len(into)
        for first, shard in self._ranges.get((kind, name), []):
            begin, stop = max(start, first), min(end, first + shard.get_shape()[0])
            if begin < stop:
                into[begin - start : stop - start].copy_(shard[begin - first : stop - first])
                missing -= stop - begin
        if missing:
            raise DataError(f"cannot resume from {self._folder}: {missing:,} elements of {name} ({kind}) are missing")
