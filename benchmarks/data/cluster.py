"""Whole builds of a corpus on a Dask cluster of this machine, in turns with a pool of as many processes.

The text is of the toy grammar, unless ``--src`` and ``--tgt`` give another. The time includes sending text to the
workers and back, the client and the scheduler, which share the cores with the workers here.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.data.corpus import source_options
from benchmarks.data.text import write_text
from benchmarks.lib.bars import print_at_least
from benchmarks.lib.machine import child_seconds, count_cores
from benchmarks.lib.processes import run_prep
from benchmarks.lib.turns import format_range, median_ratio, take_turns

ROUNDS = 3
PAIRS = 300_000

#: The stages that workers share. The others read one text from beginning to end, or train one vocabulary.
SHARED = re.compile(r"^(hold out|clean train|drop repeated pairs|encode train): done,.* ([\d.]+) s$", re.MULTILINE)


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
        cluster = stack.enter_context(dask_cluster(folder, cores))
        build = partial(measure, folder / "corpus", cluster)
        systems = {
            "pool": partial(build, [*source_options(files), "--workers", str(cores)]),
            "Dask": partial(build, [*source_options(files), "--cluster", str(folder / "scheduler.json")]),
        }
        found = take_turns(systems, options.rounds, warm_up=1)  # in the first round, workers import
    for system, builds in found.items():
        print(
            f"{system}, {cores} workers, seconds (medians of {options.rounds}): "
            f"build {format_range([build.seconds for build in builds], '.1f')}, "
            f"shared stages {statistics.median(build.shared for build in builds):.1f}, "
            f"CPU time of all processes {statistics.median(build.busy for build in builds):.1f}"
        )
    for what, name in (
        ("speed of whole builds", "seconds"),
        ("speed of the shared stages", "shared"),
        ("work for a second of CPU time", "busy"),
    ):
        pool, dask = ([getattr(build, name) for build in found[system]] for system in systems)
        print_at_least(f"{what}, Dask over the pool", median_ratio(pool, dask), 0.8)


class Build(NamedTuple):
    """What a build took in seconds: in all, in the stages that workers share, and of CPU time."""

    seconds: float
    shared: float
    busy: float


def measure(out: Path, cluster: Sequence[psutil.Process], options: Sequence[str]) -> Build:
    """Build a corpus."""
    before, began = cpu_seconds(cluster), time.perf_counter()
    done = run_prep("build", *options, "--vocab-size", "4000", "--out", str(out))
    seconds = time.perf_counter() - began
    busy = cpu_seconds(cluster) - before
    shutil.rmtree(out)
    return Build(seconds, sum(float(spent) for _, spent in SHARED.findall(done.stderr)), busy)


def cpu_seconds(cluster: Sequence[psutil.Process]) -> float:
    """CPU seconds of the cluster and of this process's children that have ended."""
    return child_seconds() + sum(sum(process.cpu_times()[:2]) for process in cluster)


@contextmanager
def dask_cluster(folder: Path, workers: int) -> Iterator[Sequence[psutil.Process]]:
    """Start a scheduler and workers; yield their processes."""
    file = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    common = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    commands = [[*dask, "scheduler", *common, "--port", "0", "--no-show"]]
    commands += [[*dask, "worker", *common, "--nthreads", "1", "--no-nanny"] for _ in range(workers)]
    with ExitStack() as stack, (folder / "dask.log").open("w") as log:
        processes = []
        for command in commands:
            process = psutil.Popen(command, stdout=log, stderr=log)
            stack.callback(end, process)
            processes.append(process)
        yield processes


def end(process: psutil.Popen) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()
    process.wait()
