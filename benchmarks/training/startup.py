"""Startup time of ``dst --help``, and of ``dst train`` on the toy corpus until the first update is logged."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.lib.bars import print_at_most
from benchmarks.lib.processes import run_command, run_prep

SMOKE_OPTIONS = "--rounds 1"
TIMEOUT = 300.0
DST = Path(sys.executable).with_name("dst")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)


def main(options: argparse.Namespace) -> None:
    rounds = options.rounds
    help_seconds = statistics.median(seconds_of([str(DST), "--help"]) for _ in range(2 * rounds))
    print_at_most(f"dst --help (median of {2 * rounds})", help_seconds, 0.4, unit=" s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_prep("build", "--source", "toy", "--out", str(folder / "corpus"))
        times = [seconds_to_first_update(folder, turn) for turn in range(rounds + 1)]
    first = statistics.median(times[1:])  # the first turn builds the operators
    print_at_most(f"dst train toy to the first update logged (median of {rounds})", first, 15.0, unit=" s")


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
