"""The engine compared with a bare PyTorch loop, and two ranks compared with one rank of two threads."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.lib.bare import BareStepper
from benchmarks.lib.bars import print_at_least, print_at_most, print_share
from benchmarks.lib.limits import cpu_flops, flops_per_token
from benchmarks.lib.processes import Worker, environment, free_port
from benchmarks.lib.turns import median_ratio, take_turns
from benchmarks.lib.workload import PIECES, budget_of, build_loader, load_sized, write_split
from dstransformer.config import Config, compose
from dstransformer.data import Split, SplitInfo
from dstransformer.data.loader import Update
from dstransformer.data.plan import Position
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.training.engine import Engine

SMOKE_OPTIONS = "--rounds 1 --precisions fp32"
PAIRS = 50_000
TOKENS = 4_096
STEPS = 4


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5, help=f"of {STEPS} updates each; default: 5")


def main(options: argparse.Namespace) -> None:
    print(f"tiny, about {TOKENS:,} target tokens per update; seconds of an update, medians of {options.rounds} rounds")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "train"
        split = write_split(folder, PAIRS)
        folder.with_suffix(".json").write_text(split.info.model_dump_json())
        model = load_sized("tiny", "fp32").model
        flops = flops_per_token(model, PIECES, split.src_lengths + 1, split.tgt_lengths + 1)
        for precision in options.precisions:
            measure(folder, precision, flops, options.rounds)


def measure(folder: Path, precision: str, flops: float, rounds: int) -> None:
    """Measure one precision and print the results; ``flops`` are operations per token."""
    layouts = {"engine, one rank": ("engine", 1), "bare loop": ("bare", 1), "engine, two ranks": ("engine", 2)}
    peaks: list[float] = []
    with ExitStack() as stack:
        systems = {}
        for name, (kind, size) in layouts.items():
            ranks = Ranks(folder, precision, kind, size)
            stack.callback(ranks.end)
            systems[name] = ranks.run
        found = take_turns(systems, rounds, warm_up=1, before_round=lambda: peaks.append(cpu_flops(precision)))
    peak = statistics.median(peaks)
    seconds = {name: [taken / STEPS for taken, _ in results] for name, results in found.items()}
    for name, results in found.items():
        rate = statistics.median(tokens / taken for taken, tokens in results)
        print(f"  {precision}, {name:18} {statistics.median(seconds[name]):.3f} s")
        print_share("    operations", rate * flops / 1e9, peak / 1e9, "the peak", " GFLOP/s")
    one, bare, two = seconds.values()
    print_at_most(f"{precision}, engine against the bare loop", median_ratio(one, bare), 1.10)
    what = f"{precision}, two ranks of one thread against one rank of two, in speed"
    print_at_least(what, median_ratio(one, two), 0.90)


class Ranks:
    """Processes that train together, a few updates at a time."""

    def __init__(self, folder: Path, precision: str, kind: str, size: int) -> None:
        names = {"WORLD_SIZE": str(size), "MASTER_PORT": str(free_port())}
        command = [sys.executable, "-m", __name__, str(folder), precision, kind]
        self._workers = [
            Worker(command, environment(**names, RANK=str(rank), LOCAL_RANK=str(rank))) for rank in range(size)
        ]

    def run(self) -> tuple[float, int]:
        """Compute ``STEPS`` updates; return the seconds of the slowest rank, and the tokens on both sides."""
        for worker in self._workers:
            worker.send(STEPS)
        seconds, tokens = zip(*(worker.receive().split() for worker in self._workers), strict=True)
        return max(map(float, seconds)), int(tokens[0])

    def end(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()


def work(folder: Path, precision: str, kind: str) -> None:
    """Run one rank: read numbers of updates from stdin, answer with seconds and tokens on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints to stdout
        world = join_world(read_processes(os.environ))
        config = load_sized("tiny", precision, *budget_of(TOKENS, world.world_size))
        split = Split(folder, SplitInfo.model_validate_json(folder.with_suffix(".json").read_bytes()))
        stream = build_loader(split, config, world.rank, world.world_size).iter_updates(Position())
        step = _build_step(kind, config, precision, world)
        numbers = itertools.count(1)
        for line in sys.stdin:
            world.barrier()
            began, tokens = time.perf_counter(), 0
            for _ in range(int(line)):
                update = next(stream)
                step(update, next(numbers))
                tokens += update.src_tokens + update.tgt_tokens
            print(time.perf_counter() - began, tokens, file=answers, flush=True)
        stream.close()
        leave_world()


def _build_step(kind: str, config: Config, precision: str, world: World) -> Callable[[Update, int], object]:
    if kind == "engine":
        return Engine(config, compose(config, world.world_size), PIECES, world).step
    stepper = BareStepper(config, PIECES, precision, world.device)
    return lambda update, _: stepper.step(update)


if __name__ == "__main__":
    work(Path(sys.argv[1]), *sys.argv[2:])
