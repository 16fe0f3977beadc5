"""Planning an epoch: time and memory for corpora of the size of WMT14 English-German and English-French."""

from __future__ import annotations

import argparse
import time

from benchmarks.lib.bars import print_at_most, print_share
from benchmarks.lib.limits import cpu_bandwidth
from benchmarks.lib.memory import own_data_peak
from benchmarks.lib.workload import sample_lengths
from dstransformer.data.plan import Budget, plan_epoch

SMOKE_OPTIONS = "--cases En-De"

#: Sentence pairs, and the targets for the time in seconds and the memory in GB.
CASES = {"En-De": (4_500_000, 2.0, None), "En-Fr": (36_000_000, 20.0, 1.5)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))


def main(options: argparse.Namespace) -> None:
    bandwidth = cpu_bandwidth()
    for name in options.cases:
        pairs, max_seconds, max_gigabytes = CASES[name]
        src, tgt = sample_lengths(pairs, seed=0)
        with own_data_peak() as peak:
            began = time.perf_counter()
            plan = plan_epoch(src, tgt, 1, 0, Budget(25_000, 25_000, 8))
            seconds = time.perf_counter() - began
        gigabytes = (peak.bytes + src.nbytes + tgt.nbytes) / 1e9
        print(f"{name}: {pairs:,} pairs, {plan.updates:,} updates")
        print_at_most("  time", seconds, max_seconds, unit=" s")
        moved = src.nbytes + tgt.nbytes + plan.order.nbytes
        print_share("  lengths read and order written", moved / seconds / 1e9, bandwidth / 1e9, "a copy in memory")
        if max_gigabytes is None:
            print(f"  peak memory, lengths included: {gigabytes:.2f} GB")
        else:
            print_at_most("  peak memory, lengths included", gigabytes, max_gigabytes, unit=" GB")
