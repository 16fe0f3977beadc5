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
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.lib.intervals import MOST_VALUES, format_mean, mean_interval
from benchmarks.lib.machine import count_cores
from benchmarks.lib.multi30k import LANGUAGES, add_data_option, find_text
from benchmarks.lib.processes import environment, run_prep
from benchmarks.lib.tables import format_table
from dstransformer.config import load_config
from dstransformer.tracking.metrics_log import METRICS_NAME, read_records

SMOKE_OPTIONS = "--updates 40 --tokens 256 --seeds 1 --variants muon"
PRESET = "multi30k"
VOCABULARY = 4000
UPDATES = 400
TOKENS = 2048

#: A model that takes a third of the time of the preset's.
NARROW = ("model.d_model=128", "model.d_ff=512", "model.d_k=32", "model.d_v=32")

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


@dataclass(frozen=True)
class Variant:
    """What is trained.

    Attributes:
        values: What differs from ``COMMON``, as of ``dst train --set``.
    """

    name: str
    values: Sequence[str]


#: The first one is the reference.
VARIANTS = (
    Variant("adam", []),
    Variant("adam-0.006", ["schedule.peak=0.006"]),
    Variant("adam-0.0015", ["schedule.peak=0.0015"]),
    Variant("inverse_sqrt-0.0015", ["schedule.kind=inverse_sqrt", "schedule.peak=0.0015"]),
    Variant("muon", ["optimizer.name=muon"]),
    Variant("muon-0.0015", ["optimizer.name=muon", "schedule.peak=0.0015"]),
    Variant("adam-zero", ["training.zero_init_residual=true"]),
    Variant("muon-zero", ["optimizer.name=muon", "training.zero_init_residual=true"]),
)


@dataclass(frozen=True)
class Scale:
    """The size of all runs: the updates, and the tokens of an update on each side."""

    updates: int
    tokens: int

    def settings(self, variant: Variant, seed: int) -> list[str]:
        """The values of a run, as of ``dst train --set``."""
        return [
            *NARROW,
            f"batch.src_tokens={self.tokens}",
            f"batch.tgt_tokens={self.tokens}",
            "batch.micro_batches=1",
            f"training.max_updates={self.updates}",
            f"training.seed={seed}",
            f"schedule.warmup_steps={self.updates // WARMUP_PARTS}",
            f"validation.every={self.updates // VALIDATIONS}",
            "validation.bleu_sentences=1",
            f"checkpoint.every_updates={self.updates // CHECKPOINT_PARTS}",
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
    names = [variant.name for variant in VARIANTS[1:]]
    parser.add_argument(
        "--variants", nargs="+", choices=names, default=names, help="beside the reference; default: all"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--updates", type=int, default=UPDATES, help=f"default {UPDATES}")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"of an update, each side; default {TOKENS}")
    parser.add_argument("--jobs", type=int, default=count_cores(), help="runs at once; default: one a core")


def main(options: argparse.Namespace) -> int:
    if len(set(options.seeds)) < len(options.seeds) or len(options.seeds) > MOST_VALUES:
        raise SystemExit(f"--seeds {options.seeds}: give up to {MOST_VALUES} numbers, each once")
    chosen = [VARIANTS[0], *(variant for variant in VARIANTS[1:] if variant.name in options.variants)]
    scale = Scale(options.updates, options.tokens)
    folder = options.folder / f"narrow-{scale.updates}-{scale.tokens}"
    runs = [
        Run(variant.name, seed, scale.settings(variant, seed), folder) for seed in options.seeds for variant in chosen
    ]
    corpus = _build_corpus(options.data, options.folder / "corpus")
    with ThreadPoolExecutor(options.jobs) as pool:
        failed = [*pool.map(lambda run: run.train(corpus), [run for run in runs if run.read() is None])].count(False)
    found = [(run, result) for run in runs if (result := run.read()) is not None]
    results = {
        variant.name: {run.seed: result for run, result in found if run.name == variant.name} for variant in chosen
    }
    print(f"\n{format_results(results)}")
    return 1 if failed else 0


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

    def train(self, corpus: Path) -> bool:
        """Train, or resume; keep the result, and delete the checkpoints. Whether it succeeded."""
        command = [sys.executable, "-m", "dstransformer", "train", PRESET, "--corpus", str(corpus)]
        command += ["--run", str(self.path), "--set", *self.settings]
        is_new = not self.path.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.beside(".log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(OMP_NUM_THREADS="1"))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            print(f"{self.name}, seed {self.seed}: exit status {process.returncode}, see {self.beside('.log')}")
            return False
        cpu = usage.ru_utime + usage.ru_stime if is_new else None
        records = list(read_records(self.path / METRICS_NAME, skip_damaged=False))
        final = next(line for line in reversed(records) if line["kind"] == "final_validation")
        curve = [(line["step"], _loss(line)) for line in records if line["kind"] == "valid"]
        result = Result(self.configuration, curve, _loss(final), final["bleu"], cpu)
        self.beside(".json").write_text(json.dumps(asdict(result)), encoding="utf-8")
        shutil.rmtree(self.path / "checkpoints")
        print(f"{self.name}, seed {self.seed}: loss {_last(result):.4f}, BLEU {result.bleu:.2f}", flush=True)
        return True


def format_results(results: Results) -> str:
    """The table: means over seeds, and differences to the reference with the same seed, with 95% intervals."""
    (reference, *_) = results.values()
    return format_table(COLUMNS, [_format_row(name, runs, reference) for name, runs in results.items() if runs])


def _format_row(name: str, runs: Mapping[int, Result], reference: Mapping[int, Result]) -> str:
    pairs = [(result, reference[seed]) for seed, result in runs.items() if seed in reference]
    is_reference = runs is reference
    some = next(iter(runs.values()))
    updates, tokens = some.curve[-1][0], int(some.config["batch"]["tgt_tokens"])
    cells = [name, f"{updates:,} x {tokens:,}", str(len(runs))]
    for measure, spec in ((_last, ".3f"), (attrgetter("average"), ".3f"), (attrgetter("bleu"), ".2f")):
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
