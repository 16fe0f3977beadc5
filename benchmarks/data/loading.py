"""Data loading: how long a training step waits for its update. Runs in a new process, with ``launch/env.sh``."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from torch import Tensor

from benchmarks.lib.bars import print_at_most, print_share
from benchmarks.lib.limits import cpu_bandwidth
from benchmarks.lib.processes import run_module
from benchmarks.lib.workload import PIECES, budget_of, build_loader, load_sized, write_split
from dstransformer.config import Config, compose
from dstransformer.data import Split
from dstransformer.data.packing import Packing
from dstransformer.data.plan import Position
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.world import World, join_world, leave_world

PAIRS = 200_000

#: Tokens per update on each side, timed updates, and warm-up updates.
CASES = ((4_096, 30, 5), (25_000, 6, 2))


def main(options: argparse.Namespace) -> None:
    del options
    run_module(__name__)


def measure() -> None:
    world = join_world(read_processes(os.environ))
    bandwidth = cpu_bandwidth()
    with tempfile.TemporaryDirectory() as folder:
        split = write_split(Path(folder) / "train", PAIRS)
        for tokens, updates, warmup in CASES:
            measure_case(split, world, bandwidth, tokens, updates, warmup)
    leave_world()


def measure_case(split: Split, world: World, bandwidth: float, tokens: int, updates: int, warmup: int) -> None:
    from dstransformer.training.engine import Engine

    config = load_sized("tiny", "bf16", *budget_of(tokens, micro_batches=1))
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints to stdout
        engine = Engine(config, compose(config, world.world_size), PIECES, world)
    stream = build_loader(split, config).iter_updates(Position())
    waits, steps = [], []
    for number in range(1, warmup + updates + 1):
        began = time.perf_counter()
        update = next(stream)
        there = time.perf_counter()
        engine.step(update, number)
        waits.append(there - began)
        steps.append(time.perf_counter() - there)
    stream.close()
    share = 100 * sum(waits[warmup:]) / sum(steps[warmup:])
    print(f"{tokens:,}+{tokens:,} tokens: {updates} updates, a step takes {statistics.median(steps[warmup:]):.3f} s")
    print_at_most("  wait for the update, of the step's time", share, 1.0, ".3f", "%")
    longest = max(waits[warmup:])
    print(f"  longest wait {1e3 * longest:.2f} ms; for the very first update {1e3 * waits[0]:.0f} ms")
    seconds, size = assemble(split, config)
    print(f"  one thread assembles an update in {1e3 * seconds:.1f} ms")
    print_share("  bytes of an update, read and written", 2 * size / seconds / 1e9, bandwidth / 1e9, "a copy in memory")


def assemble(split: Split, config: Config) -> tuple[float, float]:
    """Seconds per update when nothing is done with it, and its bytes. A faster step would have to wait."""
    stream = build_loader(split, config).iter_updates(Position())
    next(stream)
    times, sizes = [], []
    for _ in range(30):
        began = time.perf_counter()
        update = next(stream)
        times.append(time.perf_counter() - began)
        tensors = [
            part.cu if isinstance(part, Packing) else part
            for batch in update.batches
            for part in batch
            if isinstance(part, Packing | Tensor)
        ]
        sizes.append(sum(tensor.nbytes for tensor in tensors))
    stream.close()
    return statistics.fmean(times), statistics.fmean(sizes)


if __name__ == "__main__":
    measure()
