"""Trains or evaluates a model again from its record, and compares every figure with the recorded one."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dstransformer.config import compose, precision_of, write_config
from dstransformer.data import Corpus, Split
from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.errors import DataError, DstError, UserError, counted
from dstransformer.evaluation import Evaluation
from dstransformer.evaluation.task import build_task
from dstransformer.evaluation.validation import Validator, add_paper_bleu
from dstransformer.extras.child import run_dst
from dstransformer.extras.reproduction import record as records
from dstransformer.extras.reproduction.bounds import PER_TOKEN, fewest_sentences, rounding_bound, sampling_bounds
from dstransformer.extras.reproduction.corpus import Say, build_corpus, find_corpus, stopped_early
from dstransformer.extras.reproduction.record import Figures, Record, describe_environment, differences
from dstransformer.io.files import storage_errors
from dstransformer.model import Bundle, open_bundle

RECORD_NAME = "record.json"

#: Of the comparison as JSON.
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Request:
    """The options of ``dst reproduce``.

    Attributes:
        recorded: A run, a bundle or the file of a record.
        out: The folder for the corpus, if it is built again, and for the run.
        corpus: The corpus; None to find it.
        inputs: The folder with the files that a corpus is built from; None for the working folder.
        init: The bundle that the training started from; None for the recorded path.
        processes: Number of processes; None for the recorded number.
        evaluate_only: Evaluate the recorded weights, and train nothing.
        prepare_only: Find the corpus and write the configuration, and train nothing.
    """

    recorded: Path
    out: Path
    corpus: Path | None = None
    inputs: Path | None = None
    init: Path | None = None
    processes: int | None = None
    evaluate_only: bool = False
    prepare_only: bool = False

    @property
    def run(self) -> Path:
        """The run folder of the training done again."""
        return self.out / "run"


@dataclass(frozen=True)
class Figure:
    """A figure, as recorded and as found again.

    Attributes:
        name: ``test bleu``.
        recorded: The recorded value.
        found: The value here; NaN if this version does not compute it.
        bound: How far the two may differ; infinite if too few sentences were scored for one.
    """

    name: str
    recorded: float
    found: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether it is reproduced. Without a bound only an equal figure is."""
        return self.found == self.recorded or abs(self.found - self.recorded) <= self.bound < math.inf

    @property
    def verdict(self) -> str:
        """``equal``, ``within the bound``, ``OUTSIDE the bound``, ``WITHOUT a bound`` or ``NOT COMPUTED``."""
        if math.isnan(self.found):
            return "NOT COMPUTED"
        if self.found == self.recorded:
            return "equal"
        if self.bound == math.inf:
            return "WITHOUT a bound"
        return "within the bound" if self.holds else "OUTSIDE the bound"


@dataclass(frozen=True)
class Report:
    """The outcome.

    Attributes:
        name: The name of the training.
        differences: What differs and can change the last bits of results, by name: recorded, and here.
        figures: All figures.
        same_weights: Whether the weights have the same bits; None if nothing was trained.
        loss_difference: The largest difference of a logged training loss, and its step; None if nothing was trained or
            the losses were not recorded.
    """

    name: str
    differences: Mapping[str, tuple[str, str]]
    figures: Sequence[Figure]
    same_weights: bool | None
    loss_difference: tuple[float, int] | None

    @property
    def reproduced(self) -> bool:
        """Whether every figure is within its bound and, where nothing differs, the weights have the same bits."""
        bits = bool(self.differences) or self.same_weights in (True, None)
        return bits and all(figure.holds for figure in self.figures)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``; an infinite bound, and a figure that was not computed, are null."""
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "reproduced": self.reproduced,
            "differences": {name: {"recorded": old, "here": new} for name, (old, new) in self.differences.items()},
            "figures": [
                {name: _finite(value) for name, value in asdict(one).items()} | {"verdict": one.verdict}
                for one in self.figures
            ],
            "same_weights": self.same_weights,
            "training_loss": None if self.loss_difference is None else dict(
                zip(("largest_difference", "step"), self.loss_difference, strict=True)
            ),
        }  # fmt: skip


def reproduce(request: Request, say: Say) -> Report | None:
    """Do a training, or only its evaluation, again.

    ``say`` is called with lines about what differs and what happens.

    Returns:
        The comparison; None if the training was only prepared.

    Raises:
        UserError: The record, the corpus or an option is wrong.
        DstError: The training failed or was stopped.
    """
    record = records.read(request.recorded)
    bundle = None
    if request.evaluate_only:
        if request.recorded.is_file():
            raise UserError(f"--evaluate-only: {request.recorded} holds no weights; name the run or the bundle")
        bundle = open_bundle(request.recorded)
        bundle.verify_weights()
    processes = _processes(request, record)
    parent = None if bundle is not None else _parent(request, record)
    _check_out(request.out, record)
    world = join_world(Processes(0, 0, 1), dict(os.environ))  # this process is the only one of its group
    try:
        threads = None if bundle is not None else (record.provenance.get("hardware") or {}).get("threads")
        if not (isinstance(threads, str) and threads.isdigit()):  # a number if all processes had as many on a CPU
            threads = None
        is_finished = bundle is None and _is_finished(request.run, record)
        here = describe_environment(world, processes, threads)
        changed = differences(record.provenance, records.read(request.run).provenance if is_finished else here)
        if not changed:
            say("differs   nothing: all figures must be equal")
        for name, (recorded, now) in changed.items():
            say(f"differs   {name}: recorded {recorded}, here {now}")
        found = find_corpus(record, request.corpus, request.out / "corpus")
        if found is None:
            _claim(request.out, record)
            found = build_corpus(record, request.out / "corpus", request.inputs, say)
        say(f"corpus    {found.path}: the same by all its hashes")
        if bundle is not None:
            return _compare_evaluation(record, changed, found, bundle, world)
        if not is_finished:
            _claim(request.out, record)
            arguments = _prepare(request, record, found, parent)
            if request.prepare_only:
                setting = "" if threads is None else f"OMP_NUM_THREADS={threads} "
                say(f"prepared  train on {_counted(processes)} with: {setting}{shlex.join(['dst', *arguments])}")
                return None
            _train(request, arguments, processes, threads, say)
        return _compare_training(record, request.run, found, world)
    finally:
        leave_world()


def _processes(request: Request, record: Record) -> int:
    """The number of processes that train, or 1 that evaluates. Raises if they cannot."""
    if request.evaluate_only:
        return 1
    processes = record.world_size if request.processes is None else request.processes
    compose(record.config, processes)
    if request.prepare_only or _is_finished(request.run, record):
        return processes
    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise UserError(
            f"{record.name} was trained by {processes} processes, and this machine has {counted(gpus, 'GPU')}: give a "
            f"smaller --processes that divides batch.micro_batches = {record.config.batch.micro_batches}, or "
            "--prepare-only to train with a launcher"
        )
    return processes


def _check_out(out: Path, record: Record) -> None:
    """Refuse an output folder that holds something else than an earlier call for the same record.

    Raises:
        DataError: It does.
    """
    place = out / RECORD_NAME
    if place.is_file():
        before = records.read(place)
        if before.without_places() != replace(record.without_places(), name=before.name):
            raise DataError(f"{out} is the reproduction of another training: choose another --out")
        return
    with storage_errors(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(f"{out} exists and is not a reproduction: choose another --out")


def _claim(out: Path, record: Record) -> None:
    """Make the output folder, with the record in it."""
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if not (out / RECORD_NAME).is_file():
        record.write(out / RECORD_NAME)


def _is_finished(run: Path, record: Record) -> bool:
    """Whether a run is the whole training of a record."""
    try:
        found = records.read(run)
    except DataError:
        return False
    return found.figures.keys() >= record.figures.keys() and record.identity == found.identity


def _prepare(request: Request, record: Record, corpus: Corpus, parent: Path | None) -> list[str]:
    """Write the configuration; returns the arguments of ``dst`` that train with it."""
    preset, config = request.out / "config.yaml", record.config
    tracking = config.tracking.model_copy(update={"uri": None})
    with storage_errors(preset):
        write_config(config.model_copy(update={"tracking": tracking}), preset)
    places = {"--corpus": corpus.path, "--run": request.run, **({} if parent is None else {"--init": parent})}
    given = [word for name, place in places.items() for word in (name, str(place.absolute()))]
    return ["train", str(preset.absolute()), *given]


def _train(request: Request, arguments: Sequence[str], processes: int, threads: str | None, say: Say) -> None:
    """Train, or go on with a training."""
    log = request.out / "train.log"
    say(f"training  in {request.run}, {_counted(processes)}; its log is {log}")
    done = run_dst(arguments, log, {} if threads is None else {"OMP_NUM_THREADS": threads}, processes)
    if done.signal is not None:
        raise stopped_early("the training")
    if done.status != 0:
        raise DstError(f"the training failed: {done.error}; see {log}")


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _parent(request: Request, record: Record) -> Path | None:
    """The bundle that the training started from."""
    parent = record.provenance.get("parent")
    if parent is None:
        if request.init is not None:
            raise UserError(f"--init {request.init}: {record.name} did not start from a bundle; leave it out")
        return None
    place = request.init if request.init is not None else Path(str(parent.get("path", "")))
    try:
        found = open_bundle(place)
    except DataError as error:
        raise DataError(f"{record.name} started from another bundle: give it with --init ({error})") from None
    if found.weights_sha256 != parent["weights_sha256"]:
        raise DataError(
            f"{place} is not the bundle that {record.name} started from: its weights have the hash "
            f"{found.weights_sha256[:12]}, not {parent['weights_sha256'][:12]}; give that one with --init"
        )
    return place


def _evaluate(
    record: Record, corpus: Corpus, bundle: Bundle, world: World
) -> Iterator[tuple[Split, Evaluation, Validator]]:
    """Evaluate a bundle on the held-out splits of a record, as the end of a training does."""
    config = record.config
    precision = precision_of(compose(config, record.world_size))
    task = build_task(corpus.manifest, config.validation)
    validator = Validator(config, corpus.tokenizer, Session(world), precision, task)
    validator.load(bundle.load_weights().items())
    for name in record.figures:
        split = corpus.split(name)
        found = validator.evaluate(split, config.validation.final_sentences)
        yield split, add_paper_bleu(found, split, corpus.manifest.tgt_lang), validator


def _compare_evaluation(
    record: Record, changed: Mapping[str, tuple[str, str]], corpus: Corpus, bundle: Bundle, world: World
) -> Report:
    """Evaluate the recorded weights again."""
    trained = precision_of(compose(record.config, record.world_size))
    on_gpu = "gpu_kernels" in (record.provenance.get("hardware") or {})
    precisions = (trained if on_gpu else "fp32", trained if world.device.type == "cuda" else "fp32")
    found, bounds = {}, {}
    for (name, figures), (split, evaluation, _) in zip(
        record.figures.items(), _evaluate(record, corpus, bundle, world), strict=True
    ):
        found[name] = evaluation.metrics
        sentences = fewest_sentences(split, record.config.validation.final_sentences)
        bounds[name] = {
            figure: rounding_bound(figure, value, sentences, precisions) if changed else 0.0
            for figure, value in figures.items()
        }
    return Report(record.name, changed, compare(record.figures, found, bounds), None, None)


def _compare_training(record: Record, run: Path, corpus: Corpus, world: World) -> Report:
    """Compare a training with its record."""
    found = records.read(run)
    if record.identity != found.identity:
        raise DataError(f"{run} was not trained as {record.name} was: its configuration, corpus or --init is another")
    changed = differences(record.provenance, found.provenance)
    bounds = {}
    if changed and found.figures != record.figures:
        validation = record.config.validation
        task, sentences = build_task(corpus.manifest, validation), validation.final_sentences
        bounds = {
            name: sampling_bounds(validator, split, evaluation, task, sentences)
            for name, (split, evaluation, validator) in zip(
                record.figures, _evaluate(record, corpus, open_bundle(run), world), strict=True
            )
        }
    losses = dict(found.training_loss)
    gaps = [(abs(loss - losses[step]), step) for step, loss in record.training_loss if step in losses]
    figures = compare(record.figures, found.figures, bounds)
    same_weights = found.weights_sha256 == record.weights_sha256
    return Report(record.name, changed, figures, same_weights, max(gaps, default=None))


def _finite(value: str | float) -> str | float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def compare(
    recorded: Figures, found: Mapping[str, Mapping[str, float]], bounds: Mapping[str, Mapping[str, float]]
) -> list[Figure]:
    """Every recorded figure beside the one found; without bounds they must be equal."""
    listed = []
    for split, figures in recorded.items():
        own = bounds.get(split, {})
        main = next((bound for name, bound in own.items() if name not in PER_TOKEN), 0.0)
        for name, value in figures.items():
            # BLEU of split compounds has the bound of BLEU.
            listed.append(
                Figure(f"{split} {name}", value, found.get(split, {}).get(name, math.nan), own.get(name, main))
            )
    return listed
