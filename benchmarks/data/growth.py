"""The CPU time of preparing a corpus as it grows: of each stage, for 1, 4 and 16 times as many pairs.

What counts is the cost of a further pair, without what every start costs: between 4 and 16 times as many pairs at most
1.1 times that between 1 and 4 times.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from benchmarks.data.corpus import source_options
from benchmarks.data.text import write_text
from benchmarks.lib.bars import print_at_most
from benchmarks.lib.machine import child_seconds
from benchmarks.lib.multi30k import add_data_option
from benchmarks.lib.processes import run_prep

SMOKE_OPTIONS = "--pairs 1000 --vocab-size 400"
PAIRS = 250_000
FACTORS = (1, 4, 16)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser, "train", required=False)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of the smallest corpus")
    parser.add_argument("--near", type=float, help="drop near duplicates too, from this Jaccard index on")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--folder", type=Path, help="folder for temporary text and corpora")


def main(options: argparse.Namespace) -> None:
    costs: dict[int, dict[str, float]] = {}
    for factor in FACTORS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            costs[factor] = measure_stages(Path(folder), factor * options.pairs, options)
        for stage, cost in costs[factor].items():
            print(f"{factor * options.pairs:>12,} pairs, {stage:7} {cost:8.1f} s of CPU time", flush=True)
    for stage in costs[1]:
        first, second, third = (costs[factor][stage] for factor in FACTORS)
        low, high = (second - first) / (FACTORS[1] - FACTORS[0]), (third - second) / (FACTORS[2] - FACTORS[1])
        print(
            f"{stage:7}: a further pair costs {1e6 * low / options.pairs:6.1f} µs of CPU time to {FACTORS[1]} times, "
            f"{1e6 * high / options.pairs:6.1f} µs from there to {FACTORS[2]} times"
        )
    print_at_most("cost of a further pair, the larger over the smaller corpus", high / low, 1.10)


def measure_stages(folder: Path, pairs: int, options: argparse.Namespace) -> dict[str, float]:
    """Run the stages of a build one after the other; CPU seconds of all their processes, and of all stages."""
    files, work = write_text(folder, pairs, options.data), str(folder / "work")
    near = ["--near-duplicates", str(options.near)] if options.near else []
    stages = {
        "read": source_options(files),
        "clean": near,
        "vocab": ["--vocab-size", str(options.vocab_size)],
        "encode": ["--out", str(folder / "corpus")],
    }
    costs = {}
    for stage, arguments in stages.items():
        busy = child_seconds()
        run_prep(stage, "--work", work, *arguments)
        costs[stage] = child_seconds() - busy
    shutil.rmtree(folder / "corpus")
    return {**costs, "all": sum(costs.values())}
