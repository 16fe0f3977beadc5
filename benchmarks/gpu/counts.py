"""What an update of each layout asks of a device: counted on a faked one, and stored beside this file.

``python -m benchmarks gpu --count`` counts again, which takes minutes, a C++ compiler and no device.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.roofline import Operator
from benchmarks.lib.machine import ROOT


class Counted(NamedTuple):
    """A layout whose update is counted, in bf16.

    Attributes:
        preset: The experiment.
        stage: The ZeRO stage; the presets have 1.
        gpus: Number of GPUs.
        micro_batches: Micro-batches of an update; the presets have 8.
    """

    preset: str
    stage: int
    gpus: int
    micro_batches: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.preset} zero{self.stage} {self.gpus} {self.micro_batches}"


LAYOUTS = tuple(
    Counted(preset, *layout)
    for preset in ("base", "big")
    for layout in ((1, 1, 8), (1, 1, 1), (0, 1, 1), (1, 8, 8), (0, 8, 8))
)

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


def load_counts() -> dict[Counted, Counts]:
    """The stored counts of every layout."""
    stored = json.loads(_FILE.read_text(encoding="utf-8"))
    found = {}
    for layout in LAYOUTS:
        plain = stored[layout.key]
        operators = [Operator(*row) for row in plain.pop("operators")]
        found[layout] = Counts(operators=operators, **plain)
    return found


def count(counted: Counted) -> Counts:
    """Count an update on a faked device, in a new process."""
    sys.path.append(str(ROOT / "tests"))
    from support.cuda.updates import Layout, record_update

    overrides = (f"batch.micro_batches={counted.micro_batches}",)
    fragments = (f"zero{counted.stage}", "bf16")
    recorded = record_update(Layout(counted.preset, fragments, counted.gpus, overrides, VOCABULARY))
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
    for layout in LAYOUTS:
        counts = count(layout)
        print(f"{layout.key}: {counts.launches:,} operators", flush=True)
        operators = ",\n  ".join(json.dumps(operator) for operator in counts.operators)
        figures = {name: value for name, value in vars(counts).items() if name != "operators"}
        head = json.dumps(figures)[:-1]
        rows.append(f' "{layout.key}": {head}, "operators": [\n  {operators}\n ]}}')
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
