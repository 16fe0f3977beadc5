"""Training speed of dstransformer beside Hugging Face, eole and Sockeye, on the CPU of this machine.

The systems take turns, round after round. The others are installed from the package index into environments of their
own below ``--cache``, at first use.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.lib.limits import cpu_flops, flops_per_token
from benchmarks.lib.machine import count_cores, watch_others
from benchmarks.lib.multi30k import add_data_option
from benchmarks.lib.tables import format_table
from benchmarks.lib.turns import ratios
from benchmarks.lib.workload import load_sized
from benchmarks.peers.drivers.harness import Measurement
from benchmarks.peers.recipe import (
    ALLOCATORS,
    MODELS,
    PRECISIONS,
    add_cache_option,
    build_environment,
    build_request,
)
from benchmarks.peers.systems import PEERS, System, build_systems
from benchmarks.peers.text import VOCABULARY, Text, build_text

COLUMNS = "system | tokens/s, median: | from – to: | of the peak: | allocator | first round: plain, env.sh: | others:"


@dataclass
class Series:
    """One system in one case, by allocator, a value per round: tokens/s, and the share that other processes took."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ALLOCATORS})
    others: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ALLOCATORS})

    def add(self, allocator: str, rate: float, others: float) -> None:
        self.rates[allocator].append(rate)
        self.others[allocator].append(others)

    @property
    def best_allocator(self) -> str:
        """The faster one of the first round."""
        return max(ALLOCATORS, key=lambda name: self.rates[name][0])

    @property
    def best(self) -> list[float]:
        """Tokens/s with the better allocator, one per round."""
        return self.rates[self.best_allocator]

    def allocators_to_try(self) -> tuple[str, ...]:
        """Both in the first round, then the better one."""
        return (self.best_allocator,) if any(self.rates.values()) else ALLOCATORS


@dataclass
class Case:
    """A model in a precision: the series of each system, by name, and the peak of the machine in each round."""

    model: str
    precision: str
    series: dict[str, Series]
    peaks: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """Who is measured on what, and for how long."""

    systems: Sequence[System]
    text: Text
    rounds: int
    seconds: float

    def run(self, model: str, precision: str) -> Case:
        """Measure one case; the systems take turns."""
        case = Case(model, precision, {system.name: Series() for system in self.systems})
        for number in range(1, self.rounds + 1):
            case.peaks.append(cpu_flops(precision))
            for system in self.systems:
                series = case.series[system.name]
                for allocator in series.allocators_to_try():
                    done, others = self._measure(system, case, allocator)
                    series.add(allocator, done.tokens_per_second, others)
                    print(
                        f"{model} {precision}, round {number}: {system.name}, {allocator} allocator: "
                        f"{done.tokens_per_second:,.0f} tokens/s ({done.updates} updates, {done.seconds:.0f} s; "
                        f"others took {others:.0%} of the machine)",
                        flush=True,
                    )
        return case

    def _measure(self, system: System, case: Case, allocator: str) -> tuple[Measurement, float]:
        with tempfile.TemporaryDirectory(prefix="dst-bench-") as work, watch_others() as others:
            request = build_request(case.model, case.precision, self.text, work, self.seconds)
            done = system.measure(request, self.text, build_environment(allocator))
        return done, others.share


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser, "{train,val}", required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="that each measurement runs, at least")
    add_cache_option(parser)


def main(options: argparse.Namespace) -> None:
    systems = build_systems(options.peers, count_cores())
    for system in systems:
        system.prepare(options.cache)
    with tempfile.TemporaryDirectory(prefix="dst-bench-") as folder:
        text = build_text(options.data, Path(folder))
        bench = Bench(systems, text, options.rounds, options.seconds)
        for model, precision in itertools.product(options.models, options.precisions):
            case = bench.run(model, precision)
            print(f"\n{format_case(case, text, systems)}\n", flush=True)


def format_case(case: Case, text: Text, systems: Sequence[System]) -> str:
    """The table of a case, in Markdown."""
    flops = flops_per_token(load_sized(case.model, "fp32").model, VOCABULARY, text.src_lengths, text.tgt_lengths)
    peak = statistics.median(case.peaks)
    rows = []
    for system in systems:
        series = case.series[system.name]
        rate = statistics.median(series.best)
        first = ", ".join(f"{series.rates[name][0]:,.0f}" for name in ALLOCATORS)
        rows.append(
            f"{system.name} | {rate:,.0f} | {min(series.best):,.0f} – {max(series.best):,.0f} | "
            f"{rate * flops / peak:.1%} | {series.best_allocator} | {first} | "
            f"{max(series.others[series.best_allocator]):.0%}"
        )
    return "\n\n".join(
        [
            f"### {case.model} {case.precision}",
            f"Matrix product {peak / 1e9:,.0f} GFLOP/s; a token costs {flops / 1e6:.1f} MFLOP.",
            format_table(COLUMNS, rows),
            _ratio(case, systems),
        ]
    )


def _ratio(case: Case, systems: Sequence[System]) -> str:
    """Our better layout over the best peer, by their medians; and the same within each round."""
    ours, theirs = (
        max(
            (system.name for system in systems if system.ours is side),
            key=lambda name: statistics.median(case.series[name].best),
            default=None,
        )
        for side in (True, False)
    )
    if ours is None or theirs is None:
        return "No ratio: it takes dstransformer and a peer."
    left, right = case.series[ours].best, case.series[theirs].best
    rounds = ratios(left, right)
    return (
        f"**{statistics.median(left) / statistics.median(right):.2f}×**: {ours} over {theirs} "
        f"(in one round {min(rounds):.2f} to {max(rounds):.2f})"
    )
