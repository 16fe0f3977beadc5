"""The cost of spinning OpenMP threads on shared cores: training with the spin count set by ``dst``, and with GNU's.

One process with two threads trains a small model, first alone and then next to processes that keep every core busy.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.lib.processes import environment

ROUNDS = 5
STEPS = 6
SPIN = "GOMP_SPINCOUNT"

#: GNU OpenMP's default, the value set by ``dstransformer``, and the documented way to turn spinning off.
SETTINGS = {"GNU's default": {SPIN: "300000"}, "ours": {}, "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"}}


def main() -> None:
    for name, busy in (("quiet cores", False), ("every core busy with other work", True)):
        rates: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
        with _keeping_busy(len(os.sched_getaffinity(0)) if busy else 0):
            for _ in range(ROUNDS):
                for setting, variables in SETTINGS.items():
                    rates[setting].append(_measure(variables))
        for setting, values in rates.items():
            print(f"{name}, {setting}: {statistics.median(values):,.0f} tokens/s (median of {ROUNDS})")
        ratios = [ours / theirs for ours, theirs in zip(rates["ours"], rates["GNU's default"], strict=True)]
        print(f"{name}: ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


def _measure(variables: dict[str, str]) -> float:
    """Train in a new process; return tokens per second."""
    inherited = {name: value for name, value in environment().items() if name not in (SPIN, "OMP_WAIT_POLICY")}
    done = subprocess.run(
        # in fp32: in bf16 an older processor spends nearly all its time in products
        [sys.executable, "-m", "benchmarks.training.step", "tiny", "fp32", str(STEPS)],
        env=inherited | variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout.split()[0])


@contextmanager
def _keeping_busy(processes: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
