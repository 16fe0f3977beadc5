"""What an update of each layout asks of a device: counted on a faked one, and stored beside this file.

``python -m benchmarks gpu --count`` counts again, which takes minutes, a C++ compiler and no device.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.roofline import Operator
from benchmarks.lib.machine import ROOT

#: The layouts: preset, GPUs, micro-batches; ZeRO 1 and bf16, as the presets have it.
LAYOUTS = tuple((preset, *layout) for preset in ("base", "big") for layout in ((1, 8), (1, 1), (8, 8)))

#: Size of the joint vocabulary, that of the paper's English-German model.
VOCABULARY = 37_000

#: Calls of an operator are stored as one kind if the bytes that they move differ by less than this share.
_ALIKE = 0.15

_FILE = Path(__file__).with_name("counts.json")


@dataclass(frozen=True)
class Counts:
    """One update on one of the GPUs.

    Attributes:
        operators: What runs on the device.
        waits: How often the engine waits for the device.
        src_tokens: Source tokens of the GPU's share.
        tgt_tokens: Target tokens of it.
        peak_bytes: The most bytes that tensors take.
    """

    operators: list[Operator]
    waits: int
    src_tokens: int
    tgt_tokens: int
    peak_bytes: int

    @property
    def launches(self) -> int:
        """Number of operators."""
        return sum(operator.calls for operator in self.operators)


def load_counts() -> dict[tuple[str, int, int], Counts]:
    """The stored counts of every layout."""
    stored = json.loads(_FILE.read_text(encoding="utf-8"))
    found = {}
    for preset, gpus, micro_batches in LAYOUTS:
        plain = stored[f"{preset} {gpus} {micro_batches}"]
        operators = [Operator(*row) for row in plain.pop("operators")]
        found[preset, gpus, micro_batches] = Counts(operators=operators, **plain)
    return found


def count(preset: str, gpus: int, micro_batches: int) -> Counts:
    """Count an update on a faked device, in a new process."""
    sys.path.append(str(ROOT / "tests"))
    from support.cuda.updates import Layout, record_update

    overrides = (f"batch.micro_batches={micro_batches}",)
    recorded = record_update(Layout(preset, ("zero1", "bf16"), gpus, overrides, VOCABULARY))
    return Counts(
        operators=merge(recorded.operators),
        waits=sum(recorded.waits.values()),
        src_tokens=sum(recorded.src_tokens),
        tgt_tokens=sum(recorded.tgt_tokens),
        peak_bytes=recorded.peak_bytes,
    )


def count_all() -> None:
    """Count all layouts and store them."""
    rows = []
    for preset, gpus, micro_batches in LAYOUTS:
        counts = count(preset, gpus, micro_batches)
        print(f"{preset}, {gpus} GPUs, {micro_batches} micro-batches: {counts.launches:,} operators", flush=True)
        operators = ",\n  ".join(json.dumps(operator) for operator in counts.operators)
        figures = {name: value for name, value in vars(counts).items() if name != "operators"}
        head = json.dumps(figures)[:-1]
        rows.append(f' "{preset} {gpus} {micro_batches}": {head}, "operators": [\n  {operators}\n ]}}')
    _FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def merge(operators: Iterable[Operator]) -> list[Operator]:
    """Merge calls that move nearly as many bytes, as those of micro-batches do, and take means."""
    merged: list[list[Operator]] = []
    for operator in sorted(operators, key=lambda o: (o.name, o.dtype, o.flops > 0, o.moved)):
        first = merged[-1][0] if merged else None
        alike = first is not None and (first.name, first.dtype, first.flops > 0) == (
            operator.name, operator.dtype, operator.flops > 0
        ) and operator.moved <= (1 + _ALIKE) * first.moved  # fmt: skip
        if alike:
            merged[-1].append(operator)
        else:
            merged.append([operator])
    return [_mean(group) for group in merged]


def _mean(group: Sequence[Operator]) -> Operator:
    calls = sum(operator.calls for operator in group)
    moved = sum(operator.calls * operator.moved for operator in group) // calls
    flops = sum(operator.calls * operator.flops for operator in group) // calls
    return Operator(group[0].name, group[0].dtype, calls, moved, flops)
