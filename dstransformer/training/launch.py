"""From the command line to a running trainer: every check at the door, then the processes meet."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dstransformer import __version__
from dstransformer.config import Config, compose, dump_config, load_config, precision_of
from dstransformer.corpus import Corpus
from dstransformer.data import build_budget, check_lengths, training_lengths
from dstransformer.errors import ConfigError, DataError, DstError
from dstransformer.model import check_backend
from dstransformer.model.cpu import kernels_name, processor_name
from dstransformer.tracking import RunStart, build_tracker, resolve_tracking_uri
from dstransformer.training.checkpoint import Checkpoint, CheckpointFolder, TrainState, read_checkpoint
from dstransformer.training.estimate import Estimate, estimate, odd_plan
from dstransformer.training.folders import check_run_folder
from dstransformer.training.opening import check_memory, describe_start
from dstransformer.training.processes import Processes, check_accelerator, read_processes, trains_alone
from dstransformer.training.resuming import find_checkpoint, warn_of_other_hardware
from dstransformer.training.signals import StopRequest
from dstransformer.training.storage import lock_run, replace_file, storage_errors
from dstransformer.training.world import World, join_world, leave_world

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainRequest:
    """What ``dst train`` was asked for.

    Attributes:
        preset: A preset's name or file.
        corpus: The corpus folder.
        run: The run's folder.
        overrides: ``section.key=value``.
        fragments: DeepSpeed fragments instead of the preset's; none keeps the preset's.
        resume: ``auto`` goes on from the run's latest checkpoint if there is one, ``never`` refuses a run that has any,
            a path goes on from that checkpoint.
        name: The run's name in MLflow; None for one of preset, folder and date.
    """

    preset: str
    corpus: Path
    run: Path
    overrides: Sequence[str] = ()
    fragments: Sequence[str] = ()
    resume: str = "auto"
    name: str | None = None


@dataclass(frozen=True)
class Plan:
    """A request that has passed every check that one process can make by itself."""

    config: Config
    ds_config: Mapping[str, Any]
    corpus: Corpus
    start: TrainState


@dataclass(frozen=True)
class DryRun:
    """What ``dst train --dry-run`` prints."""

    config: Config
    ds_config: Mapping[str, Any]
    world_size: int
    estimate: Estimate
    warnings: Sequence[str]


def dry_run(request: TrainRequest) -> DryRun:
    """Resolve everything and plan the first epoch, without training or writing anything."""
    processes = read_processes(os.environ, alone=True)
    plan = _check_at_the_door(request, processes)
    _check_corpus(plan.corpus, plan.config, verify=True)
    find_checkpoint(request.resume, request.run, plan.config, plan.start, plan.corpus.path)
    half = precision_of(plan.ds_config) != "fp32"
    figures = estimate(plan.config, plan.corpus, processes.world_size, half)
    warnings = odd_plan(plan.config, figures.updates_per_epoch)
    if (alone := trains_alone(os.environ)) is not None:
        warnings.append(alone)
    return DryRun(plan.config, plan.ds_config, processes.world_size, figures, warnings)


def train(request: TrainRequest) -> dict[str, Any]:
    """Train; returns the outcome as plain data.

    Raises:
        UserError: Anything wrong with the request, its files or its environment, before the run's folder is touched.
        StorageError: The run's folder cannot be written.
        DstError: The processes did not meet, or training diverged.
    """
    processes = read_processes(os.environ)
    if (alone := trains_alone(os.environ)) is not None:
        logger.warning(alone)
    plan: Plan | None = None
    mistake: Exception | None = None
    try:
        plan = _check_at_the_door(request, processes)
    except Exception as error:
        if processes.world_size == 1:
            raise
        mistake = error  # another node may not have met it, and would wait
    world = join_world(processes)
    # A process killed while DeepSpeed loads an operator would leave a lock that the next run waits for.
    with StopRequest(announced=processes.rank == 0, processes=processes.world_size) as stop:
        try:
            world.share(mistake)
            assert plan is not None
            outcome = _train(request, plan, world, stop)
        except DstError as error:
            if error.shared:
                leave_world()
            else:  # the others do not know: leaving in good order would wait for them
                error.rank = world.rank
            raise
    leave_world()
    return outcome


def _train(request: TrainRequest, plan: Plan, world: World, stop: StopRequest) -> dict[str, Any]:
    # Imported late: it takes seconds, and a user's mistake should not wait for it.
    from dstransformer.training.trainer import Trainer, describe

    half = precision_of(plan.ds_config) != "fp32"
    with world.together():
        _check_corpus(plan.corpus, plan.config, verify=world.local_rank == 0)
        check_backend(plan.config.model, plan.config.training.attention_backend, world.device, half)
    check_memory(plan.config, plan.corpus, world)
    path = _agree_on_checkpoint(request, plan, world)
    with _prepared_run(request.run, plan, world):
        with world.together():
            checkpoint = None if path is None else read_checkpoint(path)
        tracker = build_tracker(
            plan.config.tracking, rank=world.rank, run_folder=request.run, max_updates=plan.config.training.max_updates
        )
        origin = describe_origin(request, plan.corpus, git_revision() if world.is_first else None)
        origin |= {"hardware": _hardware(world)}
        with world.together():
            if checkpoint is not None and world.is_first:
                warn_of_other_hardware(checkpoint, origin["hardware"])
        for line in describe_start(
            request.run, plan.config, plan.ds_config, plan.corpus, world.world_size, origin["hardware"]
        ):
            tracker.say(line)
        trainer = Trainer(plan.config, plan.ds_config, plan.corpus, request.run, world, tracker, origin)
        if checkpoint is not None:
            trainer.resume(checkpoint)
        tracker.start(
            RunStart(
                run_name=request.name,
                config=plan.config,
                ds_config=plan.ds_config,
                manifest=plan.corpus.manifest,
                corpus=request.corpus,
                tags=_tags(origin, world),
                resume_step=None if checkpoint is None else checkpoint.state.step,
            )
        )
        try:
            outcome = trainer.run(stop)
        except KeyboardInterrupt:
            tracker.finish("killed")
            if world.is_first and (kept := CheckpointFolder(request.run / "checkpoints").checkpoints()):
                logger.warning("the same command goes on from %s", kept[-1].path)
            raise
        except BaseException:
            tracker.finish("failed")
            raise
        tracker.finish("finished" if outcome.stopped_by is None else "killed")
        world.barrier()
    return {**describe(outcome), "run": str(request.run)}


def describe_origin(request: TrainRequest, corpus: Corpus, revision: str | None) -> dict[str, Any]:
    """Where a bundle comes from: versions, revision, preset and corpus."""
    manifest = corpus.manifest
    return {
        "dstransformer": __version__,
        "git_revision": revision,
        "versions": {name: version(name) for name in ("torch", "deepspeed", "sentencepiece")},
        "preset": request.preset,
        "overrides": list(request.overrides),
        "run": str(request.run.absolute()),
        "corpus": str(request.corpus.absolute()),
        "src_lang": manifest.src_lang,
        "tgt_lang": manifest.tgt_lang,
        "tokenizer_sha256": manifest.tokenizer.sha256,
    }


def git_revision() -> str | None:
    """The commit of the checkout this package runs from, with ``-dirty`` where it was changed; None outside one.

    A package installed somewhere inside another repository, in a virtual environment say, is not of its commit.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _check_at_the_door(request: TrainRequest, processes: Processes) -> Plan:
    check_accelerator(os.environ)
    config = load_config(request.preset, request.overrides, request.fragments)
    ds_config = compose(config, processes.world_size)
    if config.tracking.enabled:
        resolve_tracking_uri(config.tracking.uri, request.run)
    if processes.rank == 0:  # network file systems remember for a while that a folder was not there
        check_run_folder(request.run)
    corpus = Corpus.open(request.corpus, verify=False)
    return Plan(config, ds_config, corpus, TrainState.fresh(ds_config, processes.world_size, corpus.manifest))


def _check_corpus(corpus: Corpus, config: Config, *, verify: bool) -> None:
    path = corpus.path
    for split in ("train", "validation"):
        if split not in corpus.splits:
            raise DataError(f"{path} has no split {split!r}, which training needs: build it again with one")
    if verify:
        corpus.verify()
    check_lengths(*training_lengths(corpus.split("train")), build_budget(config.batch))
    if config.model.positions == "learned":
        splits = corpus.manifest.splits.values()
        longest = max(max(split.src_lengths.max, split.tgt_lengths.max) for split in splits) + 1
        needed = longest + config.decoding.max_extra_tokens
        if needed > config.model.max_positions:
            raise ConfigError(
                f"model.max_positions = {config.model.max_positions}, but {path} holds sentences of {longest} tokens "
                f"and translations may be {config.decoding.max_extra_tokens} longer: set model.max_positions={needed}"
            )


def _agree_on_checkpoint(request: TrainRequest, plan: Plan, world: World) -> Path | None:
    """The checkpoint to go on from: rank 0 looks for it and reads every byte of it. Collective."""
    found: Checkpoint | None = None
    with world.together():
        if world.is_first:
            found = find_checkpoint(request.resume, request.run, plan.config, plan.start, plan.corpus.path)
    path: Path | None = world.from_first(None if found is None else found.path)
    return path


@contextmanager
def _prepared_run(run: Path, plan: Plan, world: World) -> Iterator[None]:
    """Make the run's folder and hold it. Collective.

    All processes must write into the same folder, and go by the same configuration, program and corpus.
    """
    sign = run / world.from_first(f".rank-0-was-here-{uuid.uuid4().hex}")
    with ExitStack() as held:
        with world.together():
            if world.is_first:
                with storage_errors(run):
                    run.mkdir(parents=True, exist_ok=True)
                    held.enter_context(lock_run(run))
                    sign.touch()
        settings = json.dumps([__version__, plan.config.model_dump(), plan.ds_config], sort_keys=True)
        views = world.gather((platform.node(), sign.exists(), settings, plan.start.corpus))
        with world.together():
            if world.is_first:
                sign.unlink()
            _compare(views, run, plan.corpus.path)
            if world.is_first:
                with storage_errors(run):
                    replace_file(run / "config.yaml", dump_config(plan.config))
                    replace_file(run / "ds_config.json", json.dumps(plan.ds_config, indent=2) + "\n")
        yield


def _compare(views: Sequence[tuple[str, bool, str, str]], run: Path, corpus: Path) -> None:
    hosts, seen, settings, builds = zip(*views, strict=True)

    def others(marks: Sequence[object], expected: object) -> str:
        return ", ".join(sorted({host for host, mark in zip(hosts, marks, strict=True) if mark != expected}))

    if blind := others(seen, True):
        raise ConfigError(
            f"{blind} cannot see what rank 0 on {hosts[0]} writes into {run}: "
            "put --run on a file system that all nodes share"
        )
    if strays := others(settings, settings[0]):
        raise ConfigError(
            f"{strays} has another preset, DeepSpeed JSON or version of this package than {hosts[0]}: "
            "bring all nodes to the same"
        )
    if strays := others(builds, builds[0]):
        raise ConfigError(f"{corpus} is not the same corpus on {strays} as on {hosts[0]}: copy one to every node")


def _hardware(world: World) -> dict[str, str]:
    """What the last bits of a result depend on, beside the configuration; collective, the same on every rank."""
    import torch

    if world.device.type == "cuda":
        own = {"device": torch.cuda.get_device_name(world.device)}
    else:
        own = {"device": processor_name(), "threads": str(torch.get_num_threads()), "cpu_kernels": kernels_name()}
    everywhere = world.gather(own)
    names = dict.fromkeys(name for rank in everywhere for name in rank)
    return {name: ", ".join(sorted({rank[name] for rank in everywhere if name in rank})) for name in names}


def _tags(origin: Mapping[str, Any], world: World) -> dict[str, str]:
    return {
        "git_revision": origin["git_revision"] or "unknown",
        "dstransformer": origin["dstransformer"],
        **origin["versions"],
        "preset": origin["preset"],
        "world_size": str(world.world_size),
        **origin["hardware"],
        "host": platform.node(),
    }


def dry_run_as_json(result: DryRun) -> dict[str, Any]:
    """The dry run as plain data."""
    return {
        "config": result.config.model_dump(),
        "ds_config": dict(result.ds_config),
        "world_size": result.world_size,
        "estimate": asdict(result.estimate),
        "warnings": list(result.warnings),
    }
