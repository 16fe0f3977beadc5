"""Whether a recipe learns in fewer updates: variants of a preset trained on Multi30k, compared on validation.

Each variant differs from the reference, the first one, in a few values, and is trained with several seeds, a process
and a thread for each run. Curves are of the last weights; BLEU is that of the final bundle, an average of checkpoints,
without a beam. The test set is not read. Finished runs stay in ``--folder``, and unfinished ones are resumed: give the
same command again. A run that fails is reported, and the others go on.

Updates to the reference's loss are read on a curve whose schedule goes on after them; a run planned for so few would
have decayed by then. CPU seconds hold start-up and validation, which are the same for all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.intervals import MOST_VALUES, format_mean, mean_interval
from benchmarks.lib.machine import count_cores
from benchmarks.lib.multi30k import LANGUAGES, add_data_option, find_text
from benchmarks.lib.processes import environment, run_prep
from benchmarks.lib.tables import format_table
from dstransformer.config import load_config
from dstransformer.io.command import Stopped, stopped_by_signals
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLine, read_records

PRESET = "multi30k"
VOCABULARY = 4000
UPDATES = 400
TOKENS = 2048

#: Models to try variants on: the preset's, and one that takes a third of its time.
MODELS: Mapping[str, Sequence[str]] = {
    "narrow": ("model.d_model=128", "model.d_ff=512", "model.d_k=32", "model.d_v=32"),
    "preset": (),
}

#: Parts of a training, as in the preset: its warm-up, a tenth, and the last tenth, which is averaged.
WARMUP_PARTS = 10
CHECKPOINT_PARTS = 20
AVERAGED = 3
VALIDATIONS = 8

COLUMNS = (
    "variant | updates | seeds: | loss: | difference: | loss of the average: | difference: | BLEU: | difference: | "
    "updates to the reference's loss: | tokens to it: | CPU s an update:"
)

#: What every variant has unless it states another value.
COMMON = ("optimizer.name=adam", "schedule.kind=linear", "schedule.peak=0.003")

NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Variant:
    """What is trained.

    Attributes:
        values: What differs from ``COMMON``, as of ``dst train --set``.
        share: Tokens of an update over those of the reference. There are as many tokens in all, so fewer updates if
            this is more than 1.
    """

    name: str
    values: Sequence[str]
    share: float = 1.0


#: The first one is the reference.
VARIANTS = (
    Variant("adam", []),
    Variant("adam-0.0015", ["schedule.peak=0.0015"]),
    Variant("inverse_sqrt-0.0015", ["schedule.kind=inverse_sqrt", "schedule.peak=0.0015"]),
    Variant("stable-decay", ["schedule.kind=warmup_stable_decay"]),
    Variant("muon", ["optimizer.name=muon"]),
    Variant("muon-0.0015", ["optimizer.name=muon", "schedule.peak=0.0015"]),
    Variant("muon-0.006", ["optimizer.name=muon", "schedule.peak=0.006"]),
    Variant("adam-zero", ["training.zero_init_residual=true"]),
    Variant("muon-zero", ["optimizer.name=muon", "training.zero_init_residual=true"]),
    Variant("half-batch", [], share=0.5),
    Variant("double-batch", [], share=2.0),
)


@dataclass(frozen=True)
class Scale:
    """The size of all runs: the model, and the updates and tokens an update, on each side, of the reference."""

    model: str
    updates: int
    tokens: int

    def updates_of(self, variant: Variant) -> int:
        return round(self.updates / variant.share)

    def settings(self, variant: Variant, seed: int) -> list[str]:
        """The values of a run, as of ``dst train --set``."""
        updates, tokens = self.updates_of(variant), round(self.tokens * variant.share)
        return [
            *MODELS[self.model],
            f"batch.src_tokens={tokens}",
            f"batch.tgt_tokens={tokens}",
            "batch.micro_batches=1",
            f"training.max_updates={updates}",
            f"training.seed={seed}",
            f"schedule.warmup_steps={updates // WARMUP_PARTS}",
            f"validation.every={updates // VALIDATIONS}",
            "validation.bleu_sentences=1",
            f"checkpoint.every_updates={updates // CHECKPOINT_PARTS}",
            f"checkpoint.average_last={AVERAGED}",
            f"checkpoint.keep_last={AVERAGED}",
            "checkpoint.keep_best=0",
            "decoding.beam_size=1",
            "tracking.enabled=false",
            *COMMON,
            *variant.values,
        ]


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        config: Its configuration.
        curve: Validation losses of the last weights: cross-entropy in nats a token, without label smoothing, by update.
        average: That of the final bundle.
        bleu: Validation BLEU of the final bundle.
        cpu: CPU seconds of its process, with start-up and validation; None if it was resumed.
    """

    config: dict[str, Any]
    curve: list[tuple[int, float]]
    average: float
    bleu: float
    cpu: float | None


Results = Mapping[str, Mapping[int, Result]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser, "{train,val}", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the corpus and the runs, which are kept")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--variants", nargs="+", metavar="NAME", help=f"beside the reference; default: {names[1:]}")
    parser.add_argument(
        "--add", nargs="+", action="append", default=[], metavar="NAME A.B=C", help="another variant: name and values"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--model", choices=MODELS, default="narrow", help="default: narrow")
    parser.add_argument("--updates", type=int, default=UPDATES, help=f"of the reference; default {UPDATES}")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"of its updates, each side; default {TOKENS}")
    parser.add_argument("--jobs", type=int, default=count_cores(), help="runs at once; default: one a core")
    parser.add_argument("--report", action="store_true", help="train nothing: report the finished runs")


def main(options: argparse.Namespace) -> int:
    if len(set(options.seeds)) < len(options.seeds) or len(options.seeds) > MOST_VALUES:
        raise SystemExit(f"--seeds {options.seeds}: give up to {MOST_VALUES} numbers, each once")
    chosen = choose_variants(options.variants, options.add)
    scale = Scale(options.model, options.updates, options.tokens)
    folder = options.folder / f"{scale.model}-{scale.updates}-{scale.tokens}"
    runs = [
        Run(variant.name, seed, scale.settings(variant, seed), folder) for seed in options.seeds for variant in chosen
    ]
    failed: list[Run] = []
    if not options.report:
        corpus = _build_corpus(options.data, options.folder / "corpus")
        try:
            failed = _train([run for run in runs if run.read() is None], corpus, options.jobs)
        except Stopped as stopped:
            print("stopped; the same command goes on")
            return 128 + stopped.number
    found = [(run, result) for run in runs if (result := run.read()) is not None]
    results = {
        variant.name: {run.seed: result for run, result in found if run.name == variant.name} for variant in chosen
    }
    print(f"\n{format_results(results)}")
    return 1 if failed else 0


def choose_variants(names: Sequence[str] | None, added: Sequence[Sequence[str]]) -> list[Variant]:
    """The reference, the variants of these names, by default all, and those that were added.

    Raises:
        SystemExit: A name is unknown, or not that of a folder, or two variants have it.
    """
    known = {variant.name: variant for variant in VARIANTS}
    if unknown := set(names or ()) - set(known):
        raise SystemExit(f"unknown variant {sorted(unknown)[0]}; there are: {', '.join(known)}")
    chosen = [variant for variant in VARIANTS[1:] if names is None or variant.name in names]
    for name, *_ in added:
        if not NAME.fullmatch(name):
            raise SystemExit(f"--add {name}: a name has letters, digits, dots and hyphens")
    chosen = [VARIANTS[0], *chosen, *(Variant(name, values) for name, *values in added)]
    taken = [variant.name for variant in chosen]
    if twice := [name for name in taken if taken.count(name) > 1]:
        raise SystemExit(f"two variants are called {twice[0]}: give the one of --add another name")
    return chosen


def read_curve(records: Sequence[MetricsLine]) -> list[tuple[int, float]]:
    """The validation loss by update, from the perplexity of the records of a run."""
    return [(line["step"], _loss(line)) for line in records if line["kind"] == "valid"]


def updates_to_reach(curve: Sequence[tuple[int, float]], loss: float) -> float | None:
    """The update at which a curve first is as low as this loss, on a line between validations; None if it never is."""
    before: tuple[int, float] | None = None
    for step, value in curve:
        if value <= loss:
            if before is None:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - value)
        before = (step, value)
    return None


@dataclass(frozen=True)
class Run:
    """A run of a variant with a seed: its folder below ``folder``, its output, and its result beside it."""

    name: str
    seed: int
    settings: list[str]
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}-{self.seed}"

    def beside(self, suffix: str) -> Path:
        return self.folder / f"{self.path.name}{suffix}"  # a name may have a dot

    def read(self) -> Result | None:
        """Its result; None if it has not finished.

        Raises:
            SystemExit: The result is that of other values.
        """
        record = self.beside(".json")
        if not record.exists():
            return None
        result = Result(**json.loads(record.read_text(encoding="utf-8")))
        if result.config != self.configuration:
            raise SystemExit(f"{record} is of other values: delete it and {self.path}, or give another --folder")
        return result

    @property
    def configuration(self) -> dict[str, Any]:
        """All values of the run, those of the preset too."""
        return load_config(PRESET, self.settings).model_dump(mode="json")

    def start(self, corpus: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dstransformer", "train", PRESET, "--corpus", str(corpus)]
        command += ["--run", str(self.path), "--set", *self.settings]
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.beside(".log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment(OMP_NUM_THREADS="1"))

    def finish(self, cpu: float | None) -> None:
        """Keep the result, and delete the checkpoints."""
        records = list(read_records(self.path / METRICS_NAME, skip_damaged=False))
        final = next(line for line in reversed(records) if line["kind"] == "final_validation")
        result = Result(self.configuration, read_curve(records), _loss(final), final["bleu"], cpu)
        self.beside(".json").write_text(json.dumps(asdict(result)), encoding="utf-8")
        shutil.rmtree(self.path / "checkpoints")
        print(f"{self.name}, seed {self.seed}: loss {result.curve[-1][1]:.4f}, BLEU {result.bleu:.2f}", flush=True)


def format_results(results: Results) -> str:
    """The table: means over seeds, and differences to the reference with the same seed, with 95% intervals."""
    (reference, *_) = results.values()
    return format_table(COLUMNS, [_format_row(name, runs, reference) for name, runs in results.items() if runs])


def _format_row(name: str, runs: Mapping[int, Result], reference: Mapping[int, Result]) -> str:
    pairs = [(result, reference[seed]) for seed, result in runs.items() if seed in reference]
    is_reference = runs is reference
    some = next(iter(runs.values()))
    updates, tokens = some.curve[-1][0], _tokens(some)
    cells = [name, f"{updates:,} x {tokens:,}", str(len(runs))]
    for measure, spec in ((_last, ".3f"), (_average, ".3f"), (_bleu, ".2f")):
        cells.append(f"{mean_interval([measure(result) for result in runs.values()])[0]:{spec}}")
        gains = [measure(own) - measure(other) for own, other in pairs]
        cells.append("" if is_reference else format_mean(gains, f"+{spec}"))
    reached = [updates_to_reach(own.curve, _last(other)) for own, other in pairs]
    known = [step for step in reached if step is not None]
    if is_reference or not pairs:
        cells += ["", ""]
    elif len(known) == len(pairs):
        cells += [format_mean(known, ",.0f"), f"{sum(known) / len(known) * tokens:,.0f}"]
    else:
        cells += [f"not reached in {len(pairs) - len(known)} of {len(pairs)}", ""]
    costs = [result.cpu / updates for result in runs.values() if result.cpu is not None]
    return " | ".join([*cells, f"{sum(costs) / len(costs):.2f}" if costs else ""])


def _last(result: Result) -> float:
    return result.curve[-1][1]


def _average(result: Result) -> float:
    return result.average


def _bleu(result: Result) -> float:
    return result.bleu


def _tokens(result: Result) -> int:
    return int(result.config["batch"]["tgt_tokens"])


def _loss(line: Mapping[str, Any]) -> float:
    return float(math.log(line["perplexity"]))


def _build_corpus(data: Path, corpus: Path) -> Path:
    if not corpus.exists():
        files = [
            f"--{option}{side}={find_text(data, split, language)}"
            for option, split in (("", "train"), ("valid-", "val"))
            for side, language in LANGUAGES.items()
        ]
        languages = ["--src-lang", LANGUAGES["src"], "--tgt-lang", LANGUAGES["tgt"]]
        vocabulary = ["--joint", "--vocab-size", str(VOCABULARY)]
        run_prep("build", "--source", "files", *languages, *files, *vocabulary, "--out", str(corpus))
    return corpus


def _train(runs: Sequence[Run], corpus: Path, jobs: int) -> list[Run]:
    """Train these runs, so many at once. If it is stopped, so are they, and each saves a checkpoint.

    Returns:
        Those that failed.

    Raises:
        Stopped: A signal came.
    """
    failed: list[Run] = []
    waiting: Iterator[Run] = iter(runs)
    running: dict[int, tuple[subprocess.Popen[bytes], Run, bool]] = {}
    with stopped_by_signals():
        try:
            while True:
                while len(running) < jobs and (run := next(waiting, None)) is not None:
                    is_new = not run.path.exists()
                    process = run.start(corpus)
                    running[process.pid] = (process, run, is_new)
                if not running:
                    return failed
                pid, status, usage = os.wait4(-1, 0)
                process, run, is_new = running.pop(pid)
                process.returncode = os.waitstatus_to_exitcode(status)
                if status:
                    failed.append(run)
                    print(f"{run.name}, seed {run.seed}: exit status {process.returncode}, see {run.beside('.log')}")
                else:
                    run.finish(usage.ru_utime + usage.ru_stime if is_new else None)
        finally:
            for process, _, _ in running.values():
                process.terminate()
            for process, _, _ in running.values():
                process.wait()
