"""Compares a run that was disturbed with one that was not."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from support.models.numerics import LAYOUT_TOLERANCE

#: How far losses may differ after a change of the number of processes, as a share; see docs/guide/resuming.md.
TOLERANCE = LAYOUT_TOLERANCE

#: What depends on the clock, or on other processes.
_TIMED = (
    "kind", "step", "time", "src_tokens_per_second", "tgt_tokens_per_second", "tokens_per_second", "memory_gib", "mfu",
)  # fmt: skip

Floats = NDArray[np.float32]


class Difference(NamedTuple):
    """How two runs differ.

    Attributes:
        bits: Bits of weights, moments and trace that differ.
        loss: The largest difference of a loss, as a share.
        missing: Updates that the trace lacks or has twice.
    """

    bits: int
    loss: float
    missing: int


def compare_runs(run: Path, reference: Path) -> Difference:
    """Compare the traces, the weights and moments of the last checkpoints, and the final bundles.

    A run whose disk refused a checkpoint has no such bundle as the other, because another checkpoint is in its average.
    """
    trace, expected = read_trace(run), read_trace(reference)
    found, wanted = {record["step"]: record for record in trace}, {record["step"]: record for record in expected}
    shared = sorted(found.keys() & wanted.keys())
    bits = sum(_trace_bits(found[step], wanted[step]) for step in shared)
    losses = [abs(found[s]["loss"] - wanted[s]["loss"]) / abs(wanted[s]["loss"]) for s in shared]
    tensors, others = read_tensors(run), read_tensors(reference)
    refused = _is_refused(run)
    for name in tensors.keys() | others.keys():
        if refused and name.startswith("bundle/"):
            continue
        bits += _tensor_bits(tensors.get(name), others.get(name))
    return Difference(bits, max(losses, default=0.0), len(found.keys() ^ wanted.keys()) + len(trace) - len(found))


def read_trace(run: Path) -> list[dict[str, Any]]:
    """The ``train`` lines of a run."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == "train"]


def read_tensors(run: Path) -> dict[str, Floats]:
    """Weights and moments of the newest checkpoint and the weights of the final bundle, whichever rank wrote them."""
    newest = max((run / "checkpoints").glob("step-*"))
    ranges: dict[str, list[tuple[int, Floats]]] = defaultdict(list)
    for path in newest.glob("state/*.safetensors"):
        for name, values in load_file(path).items():
            whole, _, start = name.rpartition("/")
            ranges[whole].append((int(start), values))
    tensors = {
        name: np.concatenate([values for _, values in sorted(parts, key=lambda part: part[0])])
        for name, parts in ranges.items()
    }
    return tensors | {f"bundle/{name}": v for name, v in load_file(run / "bundle" / "model.safetensors").items()}


def _is_refused(run: Path) -> bool:
    """Whether the disk refused a checkpoint that was due."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return any(line["kind"] == "unsaved" for line in lines)


def _tensor_bits(one: Floats | None, other: Floats | None) -> int:
    if one is None or other is None or one.shape != other.shape:
        return 32 * max(tensor.size for tensor in (one, other) if tensor is not None)
    return int(np.bitwise_count(one.view(np.uint32) ^ other.view(np.uint32)).sum())


def _trace_bits(one: dict[str, Any], other: dict[str, Any]) -> int:
    names = (one.keys() | other.keys()) - set(_TIMED)
    return sum((_bits(one.get(name)) ^ _bits(other.get(name))).bit_count() for name in names)


def _bits(value: float | None) -> int:
    return int(np.float64(np.nan if value is None else value).view(np.uint64))
