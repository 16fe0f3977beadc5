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

from benchmarks.lib.bars import print_at_most
from benchmarks.lib.processes import run_module
from benchmarks.lib.workload import PIECES, budget_of, build_loader, load_sized, write_split
from dstransformer.config import compose
from dstransformer.data import Split
from dstransformer.data.plan import Position
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.world import World, join_world, leave_world

SMOKE_OPTIONS = "--tokens 256 --updates 2"
PAIRS = 200_000
WARM_UP = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[4_096, 25_000], help="of an update, each side")
    parser.add_argument("--updates", type=int, default=30, help="that are timed, of the first size; default: 30")


def main(options: argparse.Namespace) -> None:
    run_module(__name__, str(options.updates), *map(str, options.tokens))


def measure(updates: int, sizes: list[int]) -> None:
    world = join_world(read_processes(os.environ))
    with tempfile.TemporaryDirectory() as folder:
        split = write_split(Path(folder) / "train", PAIRS)
        for tokens in sizes:
            measure_case(split, world, tokens, max(2, updates * sizes[0] // tokens))
    leave_world()


def measure_case(split: Split, world: World, tokens: int, updates: int) -> None:
    from dstransformer.training.engine import Engine

    config = load_sized("tiny", "bf16", *budget_of(tokens, micro_batches=1))
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints to stdout
        engine = Engine(config, compose(config, world.world_size), PIECES, world)
    stream = build_loader(split, config).iter_updates(Position())
    waits, steps = [], []
    for number in range(1, WARM_UP + updates + 1):
        began = time.perf_counter()
        update = next(stream)
        there = time.perf_counter()
        engine.step(update, number)
        waits.append(there - began)
        steps.append(time.perf_counter() - there)
    stream.close()
    share = 100 * sum(waits[WARM_UP:]) / sum(steps[WARM_UP:])
    print(f"{tokens:,}+{tokens:,} tokens: {updates} updates, a step takes {statistics.median(steps[WARM_UP:]):.3f} s")
    print_at_most("  wait for the update, of the step's time", share, 1.0, ".3f", "%")
    longest = max(waits[WARM_UP:])
    print(f"  longest wait {1e3 * longest:.2f} ms; for the very first update {1e3 * waits[0]:.0f} ms")


if __name__ == "__main__":
    measure(int(sys.argv[1]), list(map(int, sys.argv[2:])))
