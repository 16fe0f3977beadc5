"""Tokens per second, and operations per token, of training steps in a bare loop.

``--compare allocator`` takes turns with and without launch/env.sh. ``--compare spinning`` takes turns with the spin
count of OpenMP threads that ``dst`` sets, GNU's, and none, first alone and then next to processes that keep every core
busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch

from benchmarks.lib.bars import print_share
from benchmarks.lib.limits import cpu_flops, flops_per_token
from benchmarks.lib.machine import count_cores
from benchmarks.lib.processes import allocator_settings, environment, run_command
from benchmarks.lib.turns import format_range, ratios, take_turns
from benchmarks.lib.workload import PIECES, SIZES, load_sized
from dstransformer.data.packing import Packing
from dstransformer.model import DTYPES, Transformer
from dstransformer.model.loss import Objective

SMOKE_OPTIONS = "--steps 1"
ROUNDS = 5
SPIN = "GOMP_SPINCOUNT"

#: GNU OpenMP's default, the value set by ``dstransformer``, and the documented way to turn spinning off.
SPINNING = {"GNU's default": {SPIN: "300000"}, "ours": {}, "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"}}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--steps", type=int, default=6, help="steps that are timed, after one that is not")
    parser.add_argument(
        "--compare", choices=("allocator", "spinning"), help=f"settings of the process, {ROUNDS} rounds"
    )


def main(options: argparse.Namespace) -> None:
    step = partial(measure_apart, options.size, options.precision, options.steps)
    if options.compare == "allocator":
        settings = allocator_settings()
        plain = {name: value for name, value in os.environ.items() if name not in settings}
        compare({"without launch/env.sh": plain, "with it": plain | settings}, step, options.precision)
    elif options.compare == "spinning":
        inherited = {name: value for name, value in environment().items() if name not in (SPIN, "OMP_WAIT_POLICY")}
        for name, busy in (("quiet cores", 0), ("every core busy with other work", count_cores())):
            print(name)
            with busy_processes(busy):
                compare({name: inherited | own for name, own in SPINNING.items()}, step, options.precision)
    else:
        rate, flops = measure(options.size, options.precision, options.steps)
        print(f"{rate:,.0f} tokens/s, {flops / 1e6:.1f} MFLOP per token")


def compare(settings: Mapping[str, Mapping[str, str]], step: partial[tuple[float, float]], precision: str) -> None:
    """Train in turns with the variables of each setting; print the ratio of the second one over the first."""
    peaks: list[float] = []
    found = take_turns(
        {name: partial(step, variables) for name, variables in settings.items()},
        ROUNDS,
        before_round=lambda: peaks.append(cpu_flops(precision)),
    )
    rates = {name: [rate for rate, _ in results] for name, results in found.items()}
    for name, values in rates.items():
        rate, flops = statistics.median(values), found[name][0][1]
        print(f"{name}: {rate:,.0f} tokens/s (median of {ROUNDS})")
        print_share("    its products", rate * flops / 1e9, statistics.median(peaks) / 1e9, "the peak", " GFLOP/s")
    first, second, *_ = rates.values()
    print(f"ratio {format_range(ratios(second, first))}")


def measure(size: str, precision: str, steps: int) -> tuple[float, float]:
    """Tokens per second, and operations per token."""
    model_config = load_sized(size, precision).model
    objective = Objective(Transformer(model_config, PIECES).to(DTYPES[precision]), 0.1)
    generator = torch.Generator().manual_seed(1)

    def step() -> torch.Tensor:
        lengths = torch.randint(8, 24, (256,), generator=generator).sort().values
        packing = Packing.from_lengths(lengths.tolist())
        ids = torch.randint(4, PIECES, (packing.tokens,), generator=generator)
        objective(ids, packing, ids, ids, packing).loss.backward()  # type: ignore[no-untyped-call]
        objective.zero_grad()
        return lengths

    step()
    began = time.perf_counter()
    lengths = torch.cat([step() for _ in range(steps)]).numpy()
    seconds = time.perf_counter() - began
    return 2 * float(lengths.sum()) / seconds, flops_per_token(model_config, PIECES, lengths, lengths)


def measure_apart(size: str, precision: str, steps: int, env: Mapping[str, str]) -> tuple[float, float]:
    """As :func:`measure`, in a new process with these environment variables."""
    rate, flops = run_command([sys.executable, "-m", __name__, size, precision, str(steps)], env).stdout.split()
    return float(rate), float(flops)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many cores busy."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    print(*measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))
