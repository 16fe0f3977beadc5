"""The effect of launch/env.sh on a CPU: the same training step with and without its variables, in alternation."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from benchmarks.lib.bars import print_share
from benchmarks.lib.limits import cpu_flops
from benchmarks.lib.processes import settings

ROUNDS = 5
STEPS = 6


def main() -> None:
    with_settings = settings()
    plain = {name: value for name, value in os.environ.items() if name not in with_settings}
    rates: dict[str, list[float]] = {"without": [], "with": []}
    peaks = []
    for _ in range(ROUNDS):
        peaks.append(cpu_flops("bf16"))
        for name, environment in (("without", plain), ("with", plain | with_settings)):
            rate, flops = _measure(environment)
            rates[name].append(rate)
    peak = statistics.median(peaks) / 1e9
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name:>8} launch/env.sh: {rate:8,.0f} tokens/s (median of {ROUNDS})")
        print_share("    its products", rate * flops / 1e9, peak, "a matrix product of 2048", " GFLOP/s")
    ratios = [b / a for a, b in zip(rates["without"], rates["with"], strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


def _measure(environment: dict[str, str]) -> tuple[float, float]:
    """Run the step in a process; return tokens per second and operations per token."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.step", "tiny", "bf16", str(STEPS)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    rate, flops = done.stdout.split()
    return float(rate), float(flops)
