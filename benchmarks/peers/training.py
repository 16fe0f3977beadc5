"""Training throughput: every system, model and precision, round after round, and the table of it."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.lib.limits import Sizes, cpu_flops, flops_per_token
from benchmarks.lib.machine import measure_undisturbed, wait_for_quiet, watch_others
from benchmarks.lib.processes import settings
from benchmarks.peers.drivers.harness import Measurement, Request
from benchmarks.peers.systems import System
from benchmarks.peers.text import VOCABULARY, Text
from dstransformer.distributed.world import usable_cores

MODELS = {"tiny": Sizes(3, 256, 1024, 4), "base": Sizes(6, 512, 2048, 8)}
PRECISIONS = ("fp32", "bf16")
UPDATE_TOKENS = 4096
DROPOUT = 0.1
LABEL_SMOOTHING = 0.1

#: The learning rate of each model at its highest, and the updates until then. The paper's warm-up of 4,000 updates
#: would outlast a run of a quarter of an hour, which is about 500 updates of the slowest system.
PEAK_RATES = {"tiny": 1.5e-3, "base": 7e-4}
WARMUP = 200

#: How memory is given back to the kernel: glibc's way, or that of launch/env.sh.
ALLOCATORS = ("plain", "env.sh")


@dataclass
class Series:
    """What one system did in one case, by allocator, a figure a round: tokens/s, and what others took meanwhile."""

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
        """With the better allocator, a figure a round."""
        return self.rates[self.best_allocator]

    def allocators_to_try(self) -> tuple[str, ...]:
        """Both in the first round, then the better one."""
        return (self.best_allocator,) if any(self.rates.values()) else ALLOCATORS


@dataclass
class Case:
    """A model in a precision: the series of each system, by name, and the peak of the machine, a figure a round."""

    model: str
    precision: str
    series: dict[str, Series]
    peaks: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """Who is measured on what, and for how long; ``patience`` is how long to wait for a quiet machine, in seconds."""

    systems: Sequence[System]
    text: Text
    rounds: int
    seconds: float
    patience: float

    def run(self, model: str, precision: str) -> Case:
        """Measure one case; the systems take turns."""
        case = Case(model, precision, {system.name: Series() for system in self.systems})
        for number in range(1, self.rounds + 1):
            wait_for_quiet(self.patience)
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
        def once() -> tuple[Measurement, float]:
            with tempfile.TemporaryDirectory(prefix="dst-bench-") as work, watch_others() as others:
                request = build_request(case.model, case.precision, self.text, work, self.seconds)
                done = system.measure(request, self.text, build_environment(allocator))
            return done, others.share

        return measure_undisturbed(once, self.patience)


def build_request(model: str, precision: str, text: Text, work: str, seconds: float) -> Request:
    """The recipe of every training here."""
    sizes = MODELS[model]
    return Request(
        text=str(text.pieces),
        work=work,
        layers=sizes.layers,
        d_model=sizes.d_model,
        d_ff=sizes.d_ff,
        heads=sizes.heads,
        precision=precision,
        tokens=UPDATE_TOKENS,
        dropout=DROPOUT,
        label_smoothing=LABEL_SMOOTHING,
        peak_rate=PEAK_RATES[model],
        warmup=WARMUP,
        seconds=seconds,
    )


def build_environment(allocator: str) -> Mapping[str, str]:
    """The variables of a process that may use all cores, with an allocator of ``ALLOCATORS``."""
    chosen, threads = settings(), len(usable_cores())
    inherited = {name: value for name, value in os.environ.items() if name not in chosen}
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return inherited | offline | {"OMP_NUM_THREADS": str(threads)} | (chosen if allocator == "env.sh" else {})


def format_case(case: Case, text: Text, systems: Sequence[System]) -> str:
    """The table of a case, in Markdown."""
    flops = flops_per_token(MODELS[case.model], VOCABULARY, text.src_lengths, text.tgt_lengths)
    peak = statistics.median(case.peaks)
    lines = [
        f"### {case.model} {case.precision}",
        "",
        f"Matrix product {peak / 1e9:,.0f} GFLOP/s; a token costs {flops / 1e6:.1f} MFLOP.",
        "",
        "| system | tokens/s, median | from – to | of the peak | allocator | first round: plain, env.sh | others |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    for system in systems:
        series = case.series[system.name]
        rate = statistics.median(series.best)
        first = ", ".join(f"{series.rates[name][0]:,.0f}" for name in ALLOCATORS)
        lines.append(
            f"| {system.name} | {rate:,.0f} | {min(series.best):,.0f} – {max(series.best):,.0f} | "
            f"{rate * flops / peak:.1%} | {series.best_allocator} | {first} | "
            f"{max(series.others[series.best_allocator]):.0%} |"
        )
    return "\n".join([*lines, "", _ratio(case, systems)])


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
    rounds = [a / b for a, b in zip(left, right, strict=True)]
    return (
        f"**{statistics.median(left) / statistics.median(right):.2f}×**: {ours} over {theirs} "
        f"(in one round {min(rounds):.2f} to {max(rounds):.2f})"
    )
