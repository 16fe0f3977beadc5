"""Whole builds of a corpus on a Dask cluster of this machine, in turns with a pool of as many processes.

It builds from the toy grammar, ``--src`` and ``--tgt`` from other texts. What the text
takes on its way to the workers and back is part of the time, and so are the client and the scheduler, which share the
cores with the workers here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.data.corpus import source_options
from benchmarks.data.text import write_text
from benchmarks.lib.bars import print_at_least

ROUNDS = 3
PAIRS = 300_000

#: The stages that workers share. The others read one text from beginning to end, or train one vocabulary.
SHARED = re.compile(r"^(hold out|clean train|drop repeated pairs|encode train): done,.* ([\d.]+) s$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data.cluster", description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of the toy grammar")
    parser.add_argument("--src", type=Path, help="source text, in place of the toy grammar")
    parser.add_argument("--tgt", type=Path, help="its translation")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args([] if __name__ != "__main__" else None)
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        files = (options.src, options.tgt) if options.src else write_text(folder, options.pairs)
        cluster = stack.enter_context(dask_cluster(folder, cores))
        systems = {
            "pool": ["--workers", str(cores)],
            "Dask": ["--cluster", str(folder / "scheduler.json")],
        }
        whole: dict[str, list[float]] = {system: [] for system in systems}
        shared: dict[str, list[float]] = {system: [] for system in systems}
        busy: dict[str, list[float]] = {system: [] for system in systems}
        for turn in range(options.rounds + 1):
            for system, given in systems.items():
                seconds, in_stages, cpu = measure(folder / "corpus", [*source_options(files), *given], cluster)
                if turn:  # in the first, workers import
                    whole[system].append(seconds)
                    shared[system].append(in_stages)
                    busy[system].append(cpu)
    for system in systems:
        print(
            f"{system}, {cores} workers: build {statistics.median(whole[system]):.1f} s "
            f"({min(whole[system]):.1f} to {max(whole[system]):.1f}), shared stages "
            f"{statistics.median(shared[system]):.1f} s, CPU time of all processes "
            f"{statistics.median(busy[system]):.1f} s (medians of {options.rounds})"
        )
    print_at_least("speed of whole builds, Dask over the pool", ratio(whole), 0.8)
    print_at_least("speed of the shared stages, Dask over the pool", ratio(shared), 0.8)
    print_at_least("work for a second of CPU time, Dask over the pool", ratio(busy), 0.8)


def ratio(seconds: dict[str, list[float]]) -> float:
    """The median over the rounds of how much faster Dask is."""
    return statistics.median(pool / dask for pool, dask in zip(seconds["pool"], seconds["Dask"], strict=True))


def measure(out: Path, options: Sequence[str], cluster: Sequence[psutil.Process]) -> tuple[float, float, float]:
    """Build a corpus; return the seconds, those in the stages that workers share, and the CPU seconds."""
    command = [sys.executable, "-m", "data_prep", "build", *options, "--vocab-size", "4000", "--out", str(out)]
    before = cpu_seconds(cluster)
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    busy = cpu_seconds(cluster) - before
    shutil.rmtree(out)
    return seconds, sum(float(spent) for _, spent in SHARED.findall(done.stderr)), busy


def cpu_seconds(cluster: Sequence[psutil.Process]) -> float:
    """CPU seconds of the cluster and of this process's children that have ended."""
    times = os.times()
    return times.children_user + times.children_system + sum(sum(one.cpu_times()[:2]) for one in cluster)


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


if __name__ == "__main__":
    main()
