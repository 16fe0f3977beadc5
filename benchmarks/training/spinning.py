"""The cost of spinning OpenMP threads on shared cores: training with the spin count set by ``dst``, and with GNU's.

One process with two threads trains a small model, first alone and then next to processes that keep every core busy.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.lib.machine import count_cores
from benchmarks.lib.processes import environment
from benchmarks.lib.turns import format_range, ratios, take_turns
from benchmarks.training.step import measure_apart

ROUNDS = 5
STEPS = 6
SPIN = "GOMP_SPINCOUNT"
DEFAULT = "GNU's default"

#: GNU OpenMP's default, the value set by ``dstransformer``, and the documented way to turn spinning off.
SETTINGS = {DEFAULT: {SPIN: "300000"}, "ours": {}, "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"}}


def main(options: argparse.Namespace) -> None:
    del options
    for name, busy in (("quiet cores", False), ("every core busy with other work", True)):
        with _busy_processes(count_cores() if busy else 0):
            rates = take_turns({setting: partial(_measure, own) for setting, own in SETTINGS.items()}, ROUNDS)
        for setting, values in rates.items():
            print(f"{name}, {setting}: {statistics.median(values):,.0f} tokens/s (median of {ROUNDS})")
        print(f"{name}: ratio {format_range(ratios(rates['ours'], rates[DEFAULT]))}")


def _measure(variables: dict[str, str]) -> float:
    """Train in a new process; return tokens per second."""
    inherited = {name: value for name, value in environment().items() if name not in (SPIN, "OMP_WAIT_POLICY")}
    # in fp32: in bf16 an older processor spends nearly all its time in products
    return measure_apart("tiny", "fp32", STEPS, inherited | variables)[0]


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
