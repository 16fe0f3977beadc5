"""BLEU after the same training time: dstransformer, Hugging Face, eole and Sockeye, on the CPU of this machine.

Every system trains the same model by the same recipe, ours with the values of ``--ours``, alone on all cores, in the
precision and with the allocator in which a trial was fastest. The clock runs from the first updates, without start-up
and preparation, until the time is up; writing checkpoints and the like is part of it. Then its last weights translate
the held-out text by its own beam search. The models stay below ``--cache`` for ``peers-decoding``.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.lib.limits import cpu_flops, flops_per_token
from benchmarks.lib.machine import count_cores, watch_others
from benchmarks.lib.multi30k import add_data_option
from benchmarks.lib.tables import format_table
from benchmarks.lib.workload import load_sized
from benchmarks.peers.drivers.harness import Measurement
from benchmarks.peers.drivers.run_dstransformer import AVERAGE, AVERAGED, LAST
from benchmarks.peers.recipe import (
    ALLOCATORS,
    MODELS,
    PEAK_RATES,
    PRECISIONS,
    UPDATE_TOKENS,
    WARMUP,
    add_cache_option,
    build_environment,
    build_request,
)
from benchmarks.peers.systems import PEERS, Dstransformer, Peer, System
from benchmarks.peers.text import TOKENIZER, VOCABULARY, HeldOut, Pieces, Text, build_text
from benchmarks.peers.translating import BEAM_SIZE, OURS, Translator, score, signature

SPLITS = ("val", "test_2016")
BATCH = 64

COLUMNS = (
    "system | weights | precision, allocator | minutes: | updates: | epochs: | tokens/s: | of the peak: | BLEU val: | "
    "BLEU test 2016: | output length: | others:"
)

#: Weights of a training that are evaluated, by what the table calls them: folders of its model.
WEIGHTS = {"last": "."}
OUR_WEIGHTS = {"last": LAST, f"average of up to {AVERAGED} checkpoints": AVERAGE}


@dataclass(frozen=True)
class Trained:
    """A training: how it was run and what it did.

    Attributes:
        others: The share of the machine that others took meanwhile.
        peak: FLOP/s of a matrix product just before.
    """

    precision: str
    allocator: str
    others: float
    peak: float
    measurement: Measurement


@dataclass(frozen=True)
class Result:
    """The scores of a training's weights: BLEU by split, and the mean length of the output."""

    system: System
    weights: str
    trained: Trained
    bleu: dict[str, float]
    length: float


@dataclass(frozen=True)
class Bench:
    """What the trainings have in common; times are in seconds."""

    model: str
    text: Text
    seconds: float
    trial: float
    precisions: Sequence[str]
    allocators: Sequence[str]
    warmup: int

    def train(self, system: System, folder: Path) -> Trained:
        """Leave the trained model in ``folder``, in place of one that is there."""
        precision, allocator = self._choose(system)
        shutil.rmtree(folder, ignore_errors=True)
        peak = cpu_flops(precision)
        measurement, others = self._run(system, precision, allocator, self.seconds, folder)
        return Trained(precision, allocator, others, peak, measurement)

    def _choose(self, system: System) -> tuple[str, str]:
        """The precision and the allocator in which it trains fastest."""
        cases = list(itertools.product(self.precisions, self.allocators))
        if len(cases) == 1:
            return cases[0]
        rates = {}
        for precision, allocator in cases:
            done, _ = self._run(system, precision, allocator, self.trial, None)
            rates[precision, allocator] = done.tokens_per_second
            print(f"trial: {system.name}, {precision}, {allocator} allocator: {done.tokens_per_second:,.0f} tokens/s")
        return max(rates, key=lambda case: rates[case])

    def _run(
        self, system: System, precision: str, allocator: str, seconds: float, folder: Path | None
    ) -> tuple[Measurement, float]:
        with tempfile.TemporaryDirectory(prefix="dst-bench-") as work, watch_others() as others:
            request = build_request(self.model, precision, self.text, work, seconds)
            request = replace(request, warmup=self.warmup, model="" if folder is None else str(folder))
            done = system.measure(request, self.text, build_environment(allocator))
        return done, others.share


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser, "{train,val,test_2016}", required=True)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--minutes", type=float, default=15.0, help="of training, for each system")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="to try")
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument("--trial", type=float, default=20.0, help="seconds of each trial, where there is a choice")
    parser.add_argument("--warmup", type=int, default=WARMUP, help="updates until the learning rate is highest")
    parser.add_argument(
        "--ours", nargs="+", default=[], metavar="A.B=C", help="what differs in our recipe, as of dst train --set"
    )
    add_cache_option(parser)


def main(options: argparse.Namespace) -> None:
    if bad := [value for value in options.ours if value.startswith("model.")]:
        raise SystemExit(f"--ours {bad[0]}: all systems train the same model")
    cache = options.cache
    systems = [*(Peer(name) for name in options.peers), Dstransformer(count_cores(), 1, options.ours)]
    for system in systems:
        system.prepare(cache)
    models = models_folder(cache, options.model)
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dst-bench-") as folder:
        text = build_text(options.data, Path(folder))
        shutil.copyfile(text.corpus / TOKENIZER, models / TOKENIZER)
        bench = Bench(
            model=options.model,
            text=text,
            seconds=60 * options.minutes,
            trial=options.trial,
            precisions=options.precisions,
            allocators=options.allocators,
            warmup=options.warmup,
        )
        pieces = Pieces(models / TOKENIZER)
        splits = [pieces.read(options.data, split) for split in SPLITS]
        results = [found for system in systems for found in _run(bench, system, models, splits, pieces, cache)]
    print(f"\n{format_results(results, bench)}", flush=True)


def models_folder(cache: Path, model: str) -> Path:
    """Where the trained models of a size are: a folder for each system, and the tokenizer of all."""
    return cache / "models" / model


def _run(
    bench: Bench, system: System, models: Path, splits: Sequence[HeldOut], pieces: Pieces, cache: Path
) -> list[Result]:
    """Train, then translate the splits with every weights of it."""
    name = OURS if system.ours else system.name
    trained = bench.train(system, models / name)
    environment = build_environment("env.sh")
    results = []
    for label, folder in (OUR_WEIGHTS if system.ours else WEIGHTS).items():
        bleu, lengths = {}, []
        for split in splits:
            with Translator(name, models / name / folder, split, pieces, "fp32", cache, environment) as translator:
                done = translator.translate(BATCH)
            bleu[split.name] = score(done, split, pieces)
            lengths += [len(sentence) for sentence in done.pieces]
        results.append(Result(system, label, trained, bleu, sum(lengths) / len(lengths)))
        scores = ", ".join(f"{split} {value:.1f}" for split, value in bleu.items())
        print(f"{system.name}, {label}: {trained.measurement.updates} updates, BLEU {scores}", flush=True)
    return results


def format_results(results: Sequence[Result], bench: Bench) -> str:
    """The table, in Markdown."""
    sizes, text = load_sized(bench.model, "fp32").model, bench.text
    values = next((result.system.values for result in results if result.system.values), ())
    flops = flops_per_token(sizes, VOCABULARY, text.src_lengths, text.tgt_lengths)
    peak_rate = PEAK_RATES[bench.model]
    rows = []
    for result in results:
        trained, done = result.trained, result.trained.measurement
        rows.append(
            f"{result.system.name} | {result.weights} | {trained.precision}, {trained.allocator} | "
            f"{done.seconds / 60:.1f} | {done.updates:,} | {done.tgt_tokens / text.tgt_lengths.sum():.1f} | "
            f"{done.tokens_per_second:,.0f} | {done.tokens_per_second * flops / trained.peak:.1%} | "
            f"{result.bleu['val']:.1f} | {result.bleu['test_2016']:.1f} | {result.length:.1f} | {trained.others:.0%}"
        )
    return "\n\n".join(
        [
            f"### Time to quality: {bench.model}, {bench.seconds / 60:g} minutes of training",
            f"{sizes.num_layers}+{sizes.num_layers} layers, d_model {sizes.d_model}; about {UPDATE_TOKENS:,} target "
            f"tokens an update; Adam (0.9, 0.98), the learning rate rising to {peak_rate:g} in {bench.warmup} "
            f"updates, then falling with their root. Translated with beam {BEAM_SIZE} in fp32. sacrebleu "
            f"{signature()}.",
            format_table(COLUMNS, rows),
            "In bf16 the weights of eole are bf16 too; the others keep fp32.",
            *([f"Ours differs in: {' '.join(values)}."] if values else []),
            _lead(results),
        ]
    )


def _lead(results: Sequence[Result]) -> str:
    """Our last weights against the last weights of the best peer."""
    last = [result for result in results if result.weights == "last"]
    ours, peers = ([result for result in last if result.system.ours is side] for side in (True, False))
    if not ours or not peers:
        return "No comparison: it takes dstransformer and a peer."
    best = max(peers, key=lambda result: result.bleu["val"])
    ahead = ours[0].bleu["val"] - best.bleu["val"]
    return f"**{ahead:+.1f} BLEU** on val: {ours[0].system.name} over {best.system.name}, the last weights of both"
