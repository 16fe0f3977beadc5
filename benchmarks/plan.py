"""Planning an epoch: seconds and memory, for the size of WMT14 English-German and English-French."""

from __future__ import annotations

import time

from benchmarks.bars import at_most, of_limit
from benchmarks.limits import cpu_bandwidth
from benchmarks.memory import own_peak
from benchmarks.workload import sample_lengths
from dstransformer.data import Budget, plan_epoch

#: Pairs, and the most seconds and GB that planning an epoch of them may take.
CASES = {"En-De": (4_500_000, 2.0, None), "En-Fr": (36_000_000, 20.0, 1.5)}


def main() -> None:
    bandwidth = cpu_bandwidth()
    for name, (pairs, most_seconds, most_gigabytes) in CASES.items():
        src, tgt = sample_lengths(pairs, seed=0)
        with own_peak() as peak:
            began = time.perf_counter()
            plan = plan_epoch(src, tgt, 1, 0, Budget(25_000, 25_000, 8))
            seconds = time.perf_counter() - began
        gigabytes = (peak.bytes + src.nbytes + tgt.nbytes) / 1e9
        print(f"{name}: {pairs:,} pairs, {plan.updates:,} updates")
        at_most("  time", seconds, most_seconds, unit=" s")
        asked = src.nbytes + tgt.nbytes + plan.order.nbytes
        of_limit("  lengths read and order written", asked / seconds / 1e9, bandwidth / 1e9, "a copy in memory")
        if most_gigabytes is None:
            print(f"  peak memory, lengths included: {gigabytes:.2f} GB")
        else:
            at_most("  peak memory, lengths included", gigabytes, most_gigabytes, unit=" GB")


if __name__ == "__main__":
    main()
