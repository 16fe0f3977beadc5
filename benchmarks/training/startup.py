"""Startup time of ``dst --help``, and of ``dst train`` on the toy corpus until the first update is logged."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.bars import print_at_most, print_floor
from benchmarks.lib.processes import run_command, run_prep

ROUNDS = 5
TIMEOUT = 300.0
DST = Path(sys.executable).with_name("dst")

#: Imports of a training process before its first update, in order.
IMPORTS = ("numpy", "torch", "deepspeed", "dstransformer.training.build")


def main(options: argparse.Namespace) -> None:
    del options
    help_seconds = statistics.median(seconds_of([str(DST), "--help"]) for _ in range(2 * ROUNDS))
    print_at_most(f"dst --help (median of {2 * ROUNDS})", help_seconds, 0.4, unit=" s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_prep("build", "--source", "toy", "--out", str(folder / "corpus"))
        times = [seconds_to_first_update(folder, turn) for turn in range(ROUNDS + 1)]
    first = statistics.median(times[1:])  # the first turn builds the operators
    print_at_most(f"dst train toy to the first update logged (median of {ROUNDS})", first, 15.0, unit=" s")
    totals = [import_seconds(IMPORTS[:count]) for count in range(len(IMPORTS) + 1)]
    names = ["python", *(f"import {module}" for module in IMPORTS)]
    for name, total, before in zip(names, totals, [0.0, *totals[:-1]], strict=True):
        print(f"  {name:40} {total - before:5.2f} s")
    print(f"  {'joining, building the engine, one update':40} {first - totals[-1]:5.2f} s")
    print_floor("dst --help", help_seconds, totals[0], "Python's own start")
    floor = totals[1 + IMPORTS.index("deepspeed")]
    print_floor("dst train toy to the first update", first, floor, "Python, torch and DeepSpeed")


def import_seconds(modules: Sequence[str]) -> float:
    """Seconds of a process that only imports these modules."""
    code = "".join(f"import {module}\n" for module in modules)
    return statistics.median(seconds_of([sys.executable, "-c", code]) for _ in range(ROUNDS))


def seconds_of(command: list[str]) -> float:
    began = time.perf_counter()
    run_command(command, os.environ | {"DS_ACCELERATOR": "cpu"})
    return time.perf_counter() - began


def seconds_to_first_update(folder: Path, turn: int) -> float:
    run = folder / f"run-{turn}"
    metrics = run / "metrics.jsonl"
    command = [str(DST), "train", "toy", "--corpus", str(folder / "corpus"), "--run", str(run)]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--set", "training.log_every=1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (metrics.exists() and '"loss"' in metrics.read_text()):
            if process.poll() is not None or time.perf_counter() - began > TIMEOUT:
                raise RuntimeError(f"{' '.join(command)} did not log an update")
            time.sleep(0.01)
        return time.perf_counter() - began
    finally:
        process.kill()
        process.wait()
