"""Translating with beam 4: dstransformer, Hugging Face, eole, Sockeye and CTranslate2, on the CPU of this machine.

Each system translates test 2016 with the model that ``peers-quality`` has trained with it. CTranslate2 takes that of
Hugging Face, once with one worker of all threads, once with one worker per thread. All have the same pieces in the same
order, the longest first; starting, loading and a first pass over a tenth of the text are not timed. The batch size and
the allocator in which a system is fastest are found first; then they take turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.lib.limits import cpu_flops, decoding_flops
from benchmarks.lib.machine import count_cores, watch_others
from benchmarks.lib.multi30k import add_data_option
from benchmarks.lib.tables import format_table
from benchmarks.lib.workload import load_sized
from benchmarks.peers.quality import models_folder
from benchmarks.peers.recipe import ALLOCATORS, MODELS, PRECISIONS, add_cache_option, build_environment
from benchmarks.peers.text import TOKENIZER, VOCABULARY, HeldOut, Pieces
from benchmarks.peers.translating import (
    BEAM_SIZE,
    LENGTH_PENALTY,
    OURS,
    Translation,
    Translator,
    UnsupportedError,
    score,
)
from benchmarks.peers.translating import MODELS as SYSTEMS

SPLIT = "test_2016"
COLUMNS = (
    "system | sentences/s, median: | from – to: | output tokens/s: | of the peak: | output length: | BLEU: | batch: | "
    "allocator | others:"
)
CTRANSLATE2 = ("ctranslate2", "ctranslate2-workers")


@dataclass
class Series:
    """A system in a precision, with its best batch size and allocator; seconds of each round."""

    system: str
    precision: str
    batch: int
    allocator: str
    translation: Translation
    seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Sentences a second, the median of the rounds."""
        return len(self.translation.pieces) / statistics.median(self.seconds)


@dataclass(frozen=True)
class Bench:
    """Who translates what."""

    systems: Sequence[str]
    models: Path
    text: HeldOut
    pieces: Pieces
    batches: Sequence[int]
    rounds: int
    cache: Path

    def run(self, precision: str) -> tuple[list[Series], dict[str, str], float]:
        """The series of each system, the reason of those without one, and the FLOP/s of a matrix product meanwhile."""
        found, left_out, peaks = [], {}, []
        for system in self.systems:
            try:
                found.append(self._choose(system, precision))
            except UnsupportedError as error:
                left_out[system] = str(error)
        with ExitStack() as stack:
            translators = {
                series.system: stack.enter_context(self._open(series.system, precision, series.allocator))
                for series in found
            }
            for number in range(1, self.rounds + 1):
                peaks.append(cpu_flops(precision))
                for series in found:
                    done, others = self._translate(translators[series.system], series.batch)
                    series.seconds.append(done.seconds)
                    series.others.append(others)
                    print(f"{precision}, round {number}: {_describe(series.system, done, others)}", flush=True)
        return found, left_out, statistics.median(peaks)

    def _choose(self, system: str, precision: str) -> Series:
        """The best batch size with the allocator of launch/env.sh, then the better allocator with that."""
        best: Series | None = None
        for allocator in reversed(ALLOCATORS):
            with self._open(system, precision, allocator) as translator:
                for batch in (best.batch,) if best else self.batches:
                    done, others = self._translate(translator, batch)
                    what = f"{precision}, batches of {batch}, {allocator} allocator"
                    print(f"{what}: {_describe(system, done, others)}", flush=True)
                    if best is None or done.seconds < best.translation.seconds:
                        best = Series(system, precision, batch, allocator, done)
        assert best is not None
        return best

    def _open(self, system: str, precision: str, allocator: str) -> Translator:
        model, environment = self.models / SYSTEMS[system], build_environment(allocator)
        return Translator(system, model, self.text, self.pieces, precision, self.cache, environment)

    def _translate(self, translator: Translator, batch: int) -> tuple[Translation, float]:
        with watch_others([translator.pid]) as others:
            done = translator.translate(batch)
        return done, others.share


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser, "test_2016", required=True)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 64, 128, 256], help="sentences at once, to try")
    parser.add_argument("--rounds", type=int, default=5)
    add_cache_option(parser)


def main(options: argparse.Namespace) -> None:
    models = models_folder(options.cache, options.model)
    missing = [name for name in options.systems if not (models / SYSTEMS[name]).is_dir()]
    if missing:
        command = "python -m benchmarks peers-quality"
        raise SystemExit(f"{models} holds no trained model for {', '.join(missing)}: run {command} first")
    pieces = Pieces(models / TOKENIZER)
    text = pieces.read(options.data, SPLIT)
    bench = Bench(
        systems=options.systems,
        models=models,
        text=text,
        pieces=pieces,
        batches=options.batches,
        rounds=options.rounds,
        cache=options.cache,
    )
    rivals: list[Series] = []
    for precision in options.precisions:
        found, left_out, peak = bench.run(precision)
        rivals += [series for series in found if series.system in CTRANSLATE2]
        lines = format_case(options.model, precision, found, left_out, peak, bench)
        print("\n".join(["", *lines, "", *format_ratios(found, rivals), ""]), flush=True)


def _describe(system: str, done: Translation, others: float) -> str:
    rate = len(done.pieces) / done.seconds
    return f"{system}: {rate:,.1f} sentences/s ({done.seconds:.1f} s; others took {others:.0%} of the machine)"


def format_case(
    model: str, precision: str, found: Sequence[Series], left_out: dict[str, str], peak: float, bench: Bench
) -> list[str]:
    """The table of a precision, in Markdown."""
    src_tokens = sum(len(sentence) + 1 for sentence in bench.text.pieces)
    rows = []
    for series in found:
        sentences, done = len(series.translation.pieces), series.translation
        flops = decoding_flops(load_sized(model, "fp32").model, VOCABULARY, src_tokens, done.tokens, BEAM_SIZE)
        slowest, fastest = (sentences / seconds for seconds in (max(series.seconds), min(series.seconds)))
        rows.append(
            f"{series.system} | {series.rate:,.1f} | {slowest:,.1f} – {fastest:,.1f} | "
            f"{series.rate * done.tokens / sentences:,.0f} | {series.rate / sentences * flops / peak:.1%} | "
            f"{done.tokens / sentences - 1:.1f} | {score(done, bench.text, bench.pieces):.1f} | {series.batch} | "
            f"{series.allocator} | {max(series.others):.0%}"
        )
    rows += [f"{system} | {reason}{' | ' * 8}" for system, reason in left_out.items()]
    return [
        f"### Decoding: {model} {precision}",
        "",
        f"{len(bench.text.pieces):,} sentences of test 2016, beam {BEAM_SIZE}, length penalty {LENGTH_PENALTY}, "
        f"{count_cores()} threads; matrix product {peak / 1e9:,.0f} GFLOP/s.",
        "",
        format_table(COLUMNS, rows),
    ]


def format_ratios(found: Sequence[Series], rivals: Sequence[Series]) -> list[str]:
    """Ours over the best PyTorch peer in the same precision, and over each of the ``rivals``."""
    ours = next((series for series in found if series.system == OURS), None)
    peers = [series for series in found if series.system not in (OURS, *CTRANSLATE2)]
    best = [max(peers, key=lambda series: series.rate)] if peers else []
    if ours is None:
        return []
    return [
        f"- **{ours.rate / rival.rate:.2f}×**: {OURS} {ours.precision} over {rival.system} {rival.precision}"
        for rival in (*best, *rivals)
    ]
