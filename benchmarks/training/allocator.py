"""The effect of launch/env.sh on a CPU: the same training step with and without its variables, in turns."""

from __future__ import annotations

import argparse
import os
import statistics

from benchmarks.lib.bars import print_share
from benchmarks.lib.limits import cpu_flops
from benchmarks.lib.processes import allocator_settings
from benchmarks.lib.turns import format_range, ratios, take_turns
from benchmarks.training.step import measure_apart

ROUNDS = 5
STEPS = 6


def main(options: argparse.Namespace) -> None:
    del options
    settings = allocator_settings()
    plain = {name: value for name, value in os.environ.items() if name not in settings}
    peaks: list[float] = []
    found = take_turns(
        {
            "without": lambda: measure_apart("tiny", "bf16", STEPS, plain),
            "with": lambda: measure_apart("tiny", "bf16", STEPS, plain | settings),
        },
        ROUNDS,
        before_round=lambda: peaks.append(cpu_flops("bf16")),
    )
    rates = {name: [rate for rate, _ in results] for name, results in found.items()}
    flops = found["with"][0][1]
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name:>8} launch/env.sh: {rate:8,.0f} tokens/s (median of {ROUNDS})")
        peak = statistics.median(peaks) / 1e9
        print_share("    its products", rate * flops / 1e9, peak, "a matrix product of 2048", " GFLOP/s")
    print(f"ratio {format_range(ratios(rates['with'], rates['without']))}")
