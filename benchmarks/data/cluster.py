"""Whole builds of a corpus on a Dask cluster of this machine, in turns with a pool of as many processes.

The text is of the toy grammar, unless ``--src`` and ``--tgt`` give another. The time includes sending text to the
workers and back, the client and the scheduler, which share the cores with the workers here.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.data.corpus import source_options
from benchmarks.data.text import write_text
from benchmarks.lib.bars import print_at_least
from benchmarks.lib.machine import count_cores
from benchmarks.lib.processes import run_prep
from benchmarks.lib.turns import format_range, median_ratio, take_turns

SMOKE_OPTIONS = "--pairs 5000 --rounds 1"
ROUNDS = 3
PAIRS = 300_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of the toy grammar")
    parser.add_argument("--src", type=Path, help="source text, in place of the toy grammar")
    parser.add_argument("--tgt", type=Path, help="its translation")
    parser.add_argument("--rounds", type=int, default=ROUNDS)


def main(options: argparse.Namespace) -> None:
    cores = count_cores()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        files = (options.src, options.tgt) if options.src else write_text(folder, options.pairs)
        stack.enter_context(dask_cluster(folder, cores))
        build = partial(measure, folder / "corpus")
        systems = {
            "pool": partial(build, [*source_options(files), "--workers", str(cores)]),
            "Dask": partial(build, [*source_options(files), "--cluster", str(folder / "scheduler.json")]),
        }
        found = take_turns(systems, options.rounds, warm_up=1)  # in the first round, workers import
    for system, seconds in found.items():
        print(f"{system}, {cores} workers: {format_range(seconds, '.1f')} s (median of {options.rounds})")
    print_at_least("speed of whole builds, Dask over the pool", median_ratio(found["pool"], found["Dask"]), 0.8)


def measure(out: Path, options: Sequence[str]) -> float:
    """Seconds of a build."""
    began = time.perf_counter()
    run_prep("build", *options, "--vocab-size", "4000", "--out", str(out))
    seconds = time.perf_counter() - began
    shutil.rmtree(out)
    return seconds


@contextmanager
def dask_cluster(folder: Path, workers: int) -> Iterator[None]:
    """Start a scheduler and workers."""
    file = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    common = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    commands = [[*dask, "scheduler", *common, "--port", "0", "--no-show"]]
    commands += [[*dask, "worker", *common, "--nthreads", "1", "--no-nanny"] for _ in range(workers)]
    with ExitStack() as stack, (folder / "dask.log").open("w") as log:
        for command in commands:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
