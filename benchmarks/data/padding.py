"""Padding: the share that the padded backend adds to the attention products. Packed training has no padding."""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.lib.bars import print_at_most
from benchmarks.lib.workload import sample_lengths
from dstransformer.data.packing import ROW_COUNTS, group_lengths, round_rows
from dstransformer.data.plan import Budget, cut_update, plan_epoch

SMOKE_OPTIONS = ""
PAIRS = 200_000
UPDATES = 10

#: Tokens per update on each side, and its number of micro-batches.
CASES = ((25_000, 8), (4_096, 1))


def main(options: argparse.Namespace) -> None:
    del options
    print("packed training (the kernels for a CPU, varlen on a GPU): no sentence is padded")
    src, tgt = sample_lengths(PAIRS, seed=0)
    for tokens, micro_batches in CASES:
        print(f"{tokens:,}+{tokens:,} tokens in {micro_batches} micro-batches")
        plan = plan_epoch(src, tgt, 1, 0, Budget(tokens, tokens, micro_batches))
        batches = [
            part for number in range(UPDATES) for part in cut_update(plan.update(number), src, tgt, micro_batches)
        ]
        rows = [int((lengths[batch] + 1).sum()) for lengths in (src, tgt) for batch in batches]
        filler = sum(round_rows(count, ROW_COUNTS) for count in rows) / sum(rows) - 1
        print(f"  filler rows on a CPU: {100 * filler:.2f}%; padding, as a share of the query-key pairs:")
        for name, queries, keys in (("source", src, src), ("target", tgt, tgt), ("target to source", tgt, src)):
            _show(name, [(queries[batch], keys[batch]) for batch in batches])


def _show(name: str, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    real = whole = grouped = groups = 0
    for queries, keys in batches:
        real += int(queries.astype(np.int64) @ keys)
        whole += _cells(queries, keys)
        for group in group_lengths(queries.tolist(), keys.tolist()):
            grouped += _cells(queries[group], keys[group])
            groups += 1
    sentences = sum(len(queries) for queries, _ in batches)
    print_at_most(
        f"  {name}, in groups of {sentences / groups:.1f} sentences (CPU)", 100 * (grouped / real - 1), 5.0, unit="%"
    )
    print(f"  {name}, whole micro-batches (GPU without varlen): {100 * (whole / real - 1):.1f}%")


def _cells(queries: np.ndarray, keys: np.ndarray) -> int:
    return len(queries) * int(queries.max()) * int(keys.max())
