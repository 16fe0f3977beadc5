"""The cost of a checkpoint that is written during training: time lost around it, in steps."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.lib.bars import print_at_most, print_share
from benchmarks.lib.limits import cpu_bandwidth, disk_bandwidth, folder_bytes
from benchmarks.lib.processes import run_module
from benchmarks.lib.workload import PIECES, SIZES, budget_of, build_loader, load_sized, train_tokenizer, write_split
from dstransformer.config import compose
from dstransformer.data.plan import Position
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import join_world, leave_world
from dstransformer.tracking.events import NullTracker
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import TrainState
from dstransformer.training.checkpoints.manager import CheckpointManager
from dstransformer.training.engine import Engine

SMOKE_OPTIONS = "--size tiny --rounds 1"
PAIRS = 50_000
TOKENS = 4_096
PLAIN_STEPS = 4
POLL = 0.005


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--rounds", type=int, default=5)


def main(options: argparse.Namespace) -> None:
    run_module(__name__, options.size, str(options.rounds))


def measure(size: str, rounds: int) -> None:
    world = join_world(read_processes(os.environ))
    config = load_sized(size, "bf16", *budget_of(TOKENS, micro_batches=1))
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(sys.stderr):
        folder = Path(name)
        bandwidth, disk = cpu_bandwidth(), disk_bandwidth(folder)
        stream = build_loader(write_split(folder / "train", PAIRS), config).iter_updates(Position())
        engine = Engine(config, compose(config, world.world_size), PIECES, world)
        saver = CheckpointManager(
            CheckpointFolder(folder / "run"), config, train_tokenizer(), {}, Session(world), NullTracker()
        )
        step = _numbered(lambda number: engine.step(next(stream), number))
        for _ in range(3):
            step()
        copying = statistics.median(_seconds(engine.snapshot) for _ in range(3))
        plain, lost, longest, sizes, rates = [], [], [], [], []
        for turn in range(rounds):
            usual = [_seconds(step) for _ in range(PLAIN_STEPS)]
            began, steps = time.perf_counter(), 0
            saver.begin(engine.snapshot, TrainState(turn, Position(), 1, 1, "bf16", "none"), None)
            stall = time.perf_counter() - began
            with ThreadPoolExecutor() as watch:
                written = watch.submit(_wait_until_written, saver)
                while saver.is_writing:
                    step()
                    steps += 1
            saver.finish()
            taken = time.perf_counter() - began
            stored = folder_bytes(CheckpointFolder(folder / "run").checkpoints()[-1].path)
            rates.append(stored / (written.result() - began - stall))
            lost.append(taken - steps * statistics.median(usual))
            plain += usual
            longest.append(stall)
            sizes.append(steps)
        stream.close()
        leave_world()
    usual_step = statistics.median(plain)
    print(f"{size}, bf16, {TOKENS:,} target tokens per update: a step takes {usual_step:.2f} s")
    print(f"training is paused for {statistics.median(longest):.2f} s, of which copying takes {copying:.2f} s")
    print_share("  copying, read and written", 2 * stored / copying / 1e9, bandwidth / 1e9, "a copy in memory")
    print(f"writing takes {statistics.median(sizes):.0f} steps; {statistics.median(lost):.2f} s are lost in total")
    rate = statistics.median(rates) / 1e9
    print_share(f"  writing and hashing {stored / 1e9:.2f} GB", rate, disk / 1e9, "writing only")
    beyond = statistics.median(lost) - copying
    print_at_most(f"time lost beyond copying (median of {rounds}), in steps", beyond / usual_step, 1.0)


def _wait_until_written(saver: CheckpointManager) -> float:
    """The time when the part is on disk, to ``POLL`` seconds; training itself checks only after a step."""
    while saver.is_writing:
        time.sleep(POLL)
    return time.perf_counter()


def _numbered(step: Callable[[int], object]) -> Callable[[], object]:
    number = 0

    def following() -> object:
        nonlocal number
        number += 1
        return step(number)

    return following


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]))
