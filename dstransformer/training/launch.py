"""From the command line to a running trainer: every check at the door, then the processes meet."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dstransformer import __version__
from dstransformer.config import Config, compose, load_config, precision_of, read_config, write_config
from dstransformer.corpus import Corpus
from dstransformer.data import check_lengths, training_lengths
from dstransformer.errors import ConfigError, DataError, DstError
from dstransformer.tracking import RunStart, build_tracker
from dstransformer.training.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    read_checkpoint,
    storage_errors,
    verify_checkpoint,
)
from dstransformer.training.estimate import Estimate, build_budget, estimate
from dstransformer.training.signals import StopRequest
from dstransformer.training.world import World, join_world, leave_world, read_processes

logger = logging.getLogger(__name__)

#: Configuration that decides what an update is; it must not change in the middle of a run.
FIXED_SECTIONS = ("model", "loss", "optimizer", "batch")


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
    """

    preset: str
    corpus: Path
    run: Path
    overrides: Sequence[str] = ()
    fragments: Sequence[str] = ()
    resume: str = "auto"


@dataclass(frozen=True)
class DryRun:
    """What ``dst train --dry-run`` prints."""

    config: Config
    ds_config: Mapping[str, Any]
    world_size: int
    estimate: Estimate


def dry_run(request: TrainRequest) -> DryRun:
    """Resolve everything and plan the first epoch, without training or writing anything."""
    processes = read_processes(os.environ)
    config, ds_config = _resolve(request, processes.world_size)
    corpus = _open_corpus(request.corpus, config, verify=True)
    half = precision_of(ds_config) != "fp32"
    return DryRun(config, ds_config, processes.world_size, estimate(config, corpus, processes.world_size, half))


def train(request: TrainRequest) -> dict[str, Any]:
    """Train; returns the outcome as plain data, the same on every rank.

    Raises:
        UserError: Anything wrong with the request, its files or its environment, before the run's folder is touched.
        StorageError: The run's folder cannot be written.
    """
    processes = read_processes(os.environ)
    config, ds_config = _resolve(request, processes.world_size)
    corpus = _open_corpus(request.corpus, config, verify=processes.local_rank == 0)
    checkpoint = _find_checkpoint(request, config, verify=processes.rank == 0)
    world = join_world(processes)
    try:
        # From here on: a process killed while DeepSpeed loads an operator leaves a lock that the next run waits for.
        with StopRequest() as stop:
            # Imported late: it takes seconds, and a user's mistake should not wait for it.
            from dstransformer.training.trainer import Trainer, describe

            if world.is_first:
                _prepare_run(request.run, config, ds_config)
            _check_shared(request.run, corpus, checkpoint, world)
            tracker = build_tracker(
                config.tracking, rank=world.rank, run_folder=request.run, max_updates=config.training.max_updates
            )
            origin = describe_origin(request, corpus)
            trainer = Trainer(config, ds_config, corpus, request.run, world, tracker, origin)
            if checkpoint is not None:
                trainer.resume(checkpoint)
            tracker.start(
                RunStart(
                    run_name=request.run.absolute().name,
                    config=config,
                    ds_config=ds_config,
                    manifest=corpus.manifest,
                    corpus=request.corpus,
                    tags=_tags(origin, world),
                    resume_step=None if checkpoint is None else checkpoint.state.step,
                )
            )
            try:
                outcome = trainer.run(stop)
            except BaseException as error:
                if isinstance(error, DstError):
                    error.rank = world.rank
                tracker.finish("failed")
                raise
            tracker.finish("finished" if outcome.stopped_by is None else "killed")
            world.barrier()
            return {**describe(outcome), "run": str(request.run)}
    finally:
        leave_world()


def describe_origin(request: TrainRequest, corpus: Corpus) -> dict[str, Any]:
    """Where a bundle comes from: versions, revision, preset and corpus."""
    manifest = corpus.manifest
    return {
        "dstransformer": __version__,
        "git_revision": git_revision(),
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
    """The commit of the checkout this package runs from, with ``-dirty`` where it was changed; None outside one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def _resolve(request: TrainRequest, world_size: int) -> tuple[Config, dict[str, Any]]:
    config = load_config(request.preset, request.overrides, request.fragments)
    ds_config = compose(config, world_size)
    precision_of(ds_config)
    return config, ds_config


def _open_corpus(path: Path, config: Config, *, verify: bool) -> Corpus:
    corpus = Corpus.open(path, verify=verify)
    for split in ("train", "validation"):
        if split not in corpus.splits:
            raise DataError(f"{path} has no split {split!r}, which training needs: build it again with one")
    check_lengths(*training_lengths(corpus.split("train")), build_budget(config))
    if config.model.positions == "learned":
        splits = corpus.manifest.splits.values()
        longest = max(max(split.src_lengths.max, split.tgt_lengths.max) for split in splits) + 1
        needed = longest + config.decoding.max_extra_tokens
        if needed > config.model.max_positions:
            raise ConfigError(
                f"model.max_positions = {config.model.max_positions}, but {path} holds sentences of {longest} tokens "
                f"and translations may be {config.decoding.max_extra_tokens} longer: set model.max_positions={needed}"
            )
    return corpus


def _find_checkpoint(request: TrainRequest, config: Config, *, verify: bool) -> Checkpoint | None:
    folder = CheckpointFolder(request.run / "checkpoints")
    latest = folder.latest()
    if request.resume == "never":
        if latest is not None:
            raise ConfigError(
                f"{request.run} already holds a run, at step {latest.state.step}: give another --run, delete the "
                "folder, or go on from it with --resume auto"
            )
        return None
    checkpoint = latest if request.resume == "auto" else read_checkpoint(Path(request.resume))
    if checkpoint is not None:
        _check_unchanged(checkpoint, config)
        if verify:
            verify_checkpoint(checkpoint)
    return checkpoint


def _check_unchanged(checkpoint: Checkpoint, config: Config) -> None:
    before, now = read_config(checkpoint.bundle / "config.yaml").model_dump(), config.model_dump()
    pairs = [
        (f"{section}.{key}", value, now[section][key])
        for section in FIXED_SECTIONS
        for key, value in before[section].items()
    ]
    pairs.append(("training.seed", before["training"]["seed"], now["training"]["seed"]))
    for key, old, new in pairs:
        if old != new:
            raise ConfigError(
                f"{key} is {new}, but {checkpoint.path} was trained with {old}: set {key}={old} to go on, "
                "or start another run with another --run"
            )


def _prepare_run(run: Path, config: Config, ds_config: Mapping[str, Any]) -> None:
    with storage_errors(run):
        run.mkdir(parents=True, exist_ok=True)
        write_config(config, run / "config.yaml")
        (run / "ds_config.json").write_text(json.dumps(ds_config, indent=2) + "\n", encoding="utf-8")


def _check_shared(run: Path, corpus: Corpus, checkpoint: Checkpoint | None, world: World) -> None:
    """All processes must write into one run folder, go on from one checkpoint and read one corpus. Collective."""
    sign = run / world.from_first(f".rank-0-was-here-{uuid.uuid4().hex}")
    if world.is_first:
        with storage_errors(run):
            sign.touch()
    world.barrier()
    step = None if checkpoint is None else checkpoint.state.step
    views = world.gather((platform.node(), sign.exists(), step, corpus.manifest.build_key))
    if world.is_first:
        sign.unlink()
    hosts, seen, steps, builds = zip(*views, strict=True)
    blind = sorted({host for host, found in zip(hosts, seen, strict=True) if not found})
    if blind:
        raise ConfigError(
            f"{', '.join(blind)} cannot see what rank 0 on {hosts[0]} writes into {run}: "
            "put --run on a file system that all nodes share"
        )
    if len(set(steps)) > 1:
        raise ConfigError(f"the processes see checkpoints of different steps in {run}: {steps}; start once more")
    if len(set(builds)) > 1:
        raise ConfigError(f"{corpus.path} is not the same corpus on all of {', '.join(hosts)}: copy one to every node")


def _tags(origin: Mapping[str, Any], world: World) -> dict[str, str]:
    import torch

    on_gpu = world.device.type == "cuda"
    return {
        "git_revision": origin["git_revision"] or "unknown",
        "dstransformer": origin["dstransformer"],
        **origin["versions"],
        "preset": origin["preset"],
        "world_size": str(world.world_size),
        "device": torch.cuda.get_device_name(world.device) if on_gpu else platform.processor() or "CPU",
        "host": platform.node(),
    }


def dry_run_as_json(result: DryRun) -> dict[str, Any]:
    """The dry run as plain data."""
    return {
        "config": result.config.model_dump(),
        "ds_config": dict(result.ds_config),
        "world_size": result.world_size,
        "estimate": asdict(result.estimate),
    }
