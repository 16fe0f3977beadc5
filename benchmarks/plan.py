"""Planning an epoch: seconds and memory, for the size of WMT14 English-German and English-French."""

from __future__ import annotations

import resource
import time

import numpy as np

from dstransformer.data import Budget, plan_epoch

SIZES = {"En-De": 4_500_000, "En-Fr": 36_000_000}


def main() -> None:
    rng = np.random.default_rng(0)
    for name, pairs in SIZES.items():
        src, tgt = (np.clip(rng.gamma(2.5, 12.0, pairs), 1, 256).astype(np.int32) for _ in range(2))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        plan = plan_epoch(src, tgt, 1, 0, Budget(25_000, 25_000, 8))
        seconds = time.perf_counter() - began
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        print(f"{name}: {pairs:,} pairs, {plan.updates:,} updates, {seconds:.2f} s, {peak:.2f} GiB beside the lengths")
