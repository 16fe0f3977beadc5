"""The losses of the small runs of ``lease.sh 1`` beside those of the CPU in fp32, and the BLEU of the toy.

The runs have one seed, the same initial weights, drawn on the CPU, the same batches and no dropout. So every trace
follows that of the CPU as closely as its precision allows, one that was stopped and resumed included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib.tables import format_table

#: Updates of a run.
UPDATES = 30

#: How far the losses of the first half and of all updates may be from those of the CPU, relative to them. On a CPU
#: those in bf16 are 3e-4 off, those in fp16 6e-5.
ALLOWED = {"fp32": (1e-4, 1e-3), "bf16": (2e-3, 1e-2), "fp16": (2e-3, 1e-2)}

#: BLEU of the toy on its test split after `make quickstart` on CPUs, in fp32, and how far below it bf16 may be.
TOY_BLEU, TOY_MARGIN = 96.44, 3.0

REFERENCE = "cpu-fp32"

_COLUMNS = "run | updates: | first loss: | last loss: | off in the first half: | off in all: | verdict"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="folder with a trace-RUN.jsonl for each run, and toy-bf16.jsonl")
    parser.add_argument("--smoke", action="store_true", help="the toy was hardly trained: do not judge its BLEU")


def main(options: argparse.Namespace) -> int:
    paths = sorted(options.folder.glob("trace-*.jsonl"))
    traces = {path.stem.removeprefix("trace-"): read_losses(path) for path in paths}
    reference = traces.get(REFERENCE, [])
    rows, good = [], len(reference) == UPDATES
    for name, trace in traces.items():
        precision = next(one for one in ALLOWED if name.endswith(one))
        off = [difference(trace[:end], reference) for end in (UPDATES // 2, UPDATES)]
        # In fp16 the first updates may be skipped, while the loss scale falls.
        close = all(one <= most for one, most in zip(off, ALLOWED[precision], strict=True))
        follows = len(trace) == len(reference) == UPDATES and close and trace[-1] < trace[0]
        good &= follows
        ends = f"{trace[0]:.4f} | {trace[-1]:.4f}" if trace else "- | -"
        rows.append(
            f"{name} | {len(trace)} | {ends} | {off[0]:.1e} | {off[1]:.1e} | {'follows' if follows else 'STRAYS'}"
        )
    print(format_table(_COLUMNS, rows))
    if {"whole-bf16", "zero1-bf16"} <= set(traces):
        apart = difference(traces["zero1-bf16"], traces["whole-bf16"])
        print(f"stopped and resumed beside whole, bf16: {'equal' if apart == 0.0 else f'differ by {apart:.1e}'}")
    bleu = read_bleu(options.folder / "toy-bf16.jsonl")
    print(f"BLEU of the toy in bf16: {'none' if bleu is None else f'{bleu:.2f}'}; in fp32 on a CPU: {TOY_BLEU}")
    learned = options.smoke or (bleu is not None and bleu >= TOY_BLEU - TOY_MARGIN)
    return 0 if good and learned else 1


def read_losses(path: Path) -> list[float]:
    """The losses of a run, by update."""
    return [record["loss"] for record in _read(path) if record["kind"] == "train"]


def read_bleu(path: Path) -> float | None:
    """The BLEU of the final bundle on the test split; None if the run has not come so far."""
    found = [record.get("bleu") for record in _read(path) if record["kind"] == "final_test"]
    return found[-1] if found else None


def difference(trace: list[float], reference: list[float]) -> float:
    """The largest difference of two losses, relative to the reference; infinite if there are none."""
    pairs = list(zip(trace, reference, strict=False))
    return max((abs(one - other) / abs(other) for one, other in pairs), default=float("inf"))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return (json.loads(line) for line in lines)
