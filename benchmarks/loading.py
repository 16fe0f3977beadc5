"""Loading: how long the step of a training run waits for its update. In a process of its own (``launch/env.sh``)."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.bars import at_most, of_limit
from benchmarks.limits import cpu_bandwidth
from benchmarks.processes import run_module
from benchmarks.workload import PIECES, budget_of, build_loader, load_sized, write_split
from dstransformer.config import Config, compose
from dstransformer.corpus import Split
from dstransformer.data import Position
from dstransformer.training.processes import read_processes
from dstransformer.training.world import World, join_world, leave_world

PAIRS = 200_000

#: Tokens of an update on each side, updates, and those before them that are not counted.
CASES = ((4_096, 30, 5), (25_000, 6, 2))


def main() -> None:
    run_module("benchmarks.loading")


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
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints
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
    at_most("  wait for the update, of the step's time", share, 1.0, ".3f", "%")
    longest = max(waits[warmup:])
    print(f"  longest wait {1e3 * longest:.2f} ms; for the first update of all {1e3 * waits[0]:.0f} ms")
    seconds, size = assemble(split, config)
    print(f"  assembling an update takes one thread {1e3 * seconds:.1f} ms")
    of_limit("  bytes of an update, read and written", 2 * size / seconds / 1e9, bandwidth / 1e9, "a copy in memory")


def assemble(split: Split, config: Config) -> tuple[float, float]:
    """Seconds between updates where nothing is done with them, and the bytes of one: a faster step would wait."""
    stream = build_loader(split, config).iter_updates(Position())
    next(stream)
    times, sizes = [], []
    for _ in range(30):
        began = time.perf_counter()
        update = next(stream)
        times.append(time.perf_counter() - began)
        tensors = [value for batch in update.batches for value in batch.arguments() if isinstance(value, torch.Tensor)]
        sizes.append(sum(tensor.nbytes for tensor in tensors))
    stream.close()
    return statistics.fmean(times), statistics.fmean(sizes)


if __name__ == "__main__":
    measure()
