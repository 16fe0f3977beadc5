"""The provenance of a run and its bundles: versions, revision, corpus, hardware. Also the first lines a run prints."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dstransformer import __version__
from dstransformer.config import Config
from dstransformer.data.augment import describe_augmentation
from dstransformer.data.mixture import describe_mixture
from dstransformer.data.plan import describe_stages
from dstransformer.data.windows import is_windowed
from dstransformer.distributed.world import World
from dstransformer.errors import counted, without_secrets
from dstransformer.model import parameter_count
from dstransformer.tracking.events import RunStart
from dstransformer.tracking.mlflow.location import resolve_experiment, resolve_tracking_uri
from dstransformer.training.checkpoints.resume import ResumePoint
from dstransformer.training.estimate import approximate_plan
from dstransformer.training.experiment import Experiment
from dstransformer.training.plan import Plan

#: The libraries whose versions can change a result.
VERSIONS = ("torch", "deepspeed", "sentencepiece", "sacrebleu")


def describe_provenance(experiment: Experiment, plan: Plan, world: World) -> dict[str, Any]:
    """The provenance stored in the bundles of a run."""
    request, manifest = experiment.request, experiment.corpus.manifest
    parent = None if experiment.pretrained is None else experiment.pretrained.record
    if plan.resumed is not None:
        parent = plan.resumed.provenance.get("parent")
    return {
        "dstransformer": __version__,
        "git_revision": git_revision() if world.is_rank0 else None,
        "versions": {name: version(name) for name in VERSIONS},
        "preset": request.preset,
        "overrides": list(map(without_secrets, request.overrides)),
        "run": str(request.run.absolute()),
        "corpus": str(request.corpus.absolute()),
        "corpus_identity": manifest.identity,
        "sources": [source.name for source in manifest.sources],
        "src_lang": manifest.src_lang,
        "tgt_lang": manifest.tgt_lang,
        "directions": [asdict(direction) for direction in manifest.directions],
        "trees": manifest.trees,
        "tokenizer_sha256": manifest.tokenizer.sha256,
        "src_tokenizer_sha256": None if manifest.src_tokenizer is None else manifest.src_tokenizer.sha256,
        "hardware": plan.hardware,
        "world_size": experiment.world_size,
        "parent": parent,
    }


def describe_start(experiment: Experiment, provenance: Mapping[str, Any], resumed: ResumePoint | None) -> RunStart:
    """The start of a run, for its tracker, with the provenance from :func:`describe_provenance`."""
    request, parent = experiment.request, provenance["parent"]
    return RunStart(
        run_name=request.name,
        config=experiment.config,
        ds_config=experiment.ds_config,
        manifest=experiment.corpus.manifest,
        corpus=request.corpus,
        tags={
            "git_revision": provenance["git_revision"] or "unknown",
            "dstransformer": provenance["dstransformer"],
            **provenance["versions"],
            "preset": provenance["preset"],
            "world_size": str(experiment.world_size),
            **({} if parent is None else {"parent": parent["weights_sha256"]}),
            **provenance["hardware"],
            "host": platform.node(),
        },
        user_tags=request.tags,
        register=request.register,
        resume_step=None if resumed is None else resumed.checkpoint.state.step,
    )


def describe_run(experiment: Experiment, plan: Plan) -> Iterator[str]:
    """The first lines a run prints: run folder, corpus, model, hardware, plan, MLflow address."""
    config, corpus, run = experiment.config, experiment.corpus, experiment.run
    info, train = corpus.manifest, corpus.manifest.splits["train"]
    parameters = parameter_count(config.model, corpus.tokenizer.vocab_size, corpus.tokenizer.src.vocab_size)
    updates = config.training.max_updates
    epochs, in_stages = approximate_plan(experiment)
    machines = ", ".join(f"{name} {value}" for name, value in plan.hardware.items())
    yield f"run       {run.absolute().name} in {run.absolute()}"
    yield (f"corpus    {corpus.path}: {info.languages}, {train.pairs:,} pairs, vocabulary {info.vocabulary}")
    yield f"model     {parameters:,} parameters, {experiment.precision}, ZeRO stage {experiment.zero_stage}"
    if plan.precision_from is not None:
        yield f"precision {experiment.precision}, {plan.precision_from}"
    if experiment.pretrained is not None:
        yield f"init      {experiment.pretrained.describe()}"
    if mixture := describe_mixture(info.parts, config.training.mixture):
        yield f"mixture   {mixture}"
    if config.training.augment:
        yield f"augment   {describe_augmentation(config.training.augment)}"
    yield f"hardware  {counted(experiment.world_size, 'rank')}: {machines}"
    if plan.micro_batches_from == "checkpoint":
        yield f"batches   batch.micro_batches is {config.batch.micro_batches}, as its checkpoint has"
    if stages := describe_stages(config.batch.stages, in_stages):
        yield f"stages    {stages}"
    if tokenizers := ", ".join(dict.fromkeys(experiment.task.tokenizers.values())):
        yield f"scores    {experiment.task.metric} ranks checkpoints; BLEU with sacrebleu's tokenizer {tokenizers}"
    window = config.training.window_pairs
    windows = f", in windows of about {window:,} pairs" if is_windowed(train.pairs, window) else ""
    yield f"plan      {updates:,} updates, about {epochs:,.1f} epochs{windows}"
    if config.tracking.enabled:
        uri = resolve_tracking_uri(config.tracking.uri, run)
        yield f"MLflow    {without_secrets(uri)}, experiment {resolve_experiment(config.tracking.experiment)}"
    else:
        yield "MLflow    off (tracking.enabled)"


def describe_trial(config: Config, resumed: ResumePoint | None) -> str:
    """The line of a run that has found its number of micro-batches by trial."""
    before = "" if resumed is None else f"; it was {resumed.config.batch.micro_batches}"
    return f"batches   batch.micro_batches is {config.batch.micro_batches}, the least that fits, by trial{before}"


def git_revision() -> str | None:
    """The commit of the checkout that this package runs from, with ``-dirty`` if modified; None outside a checkout.

    The commit of another repository that happens to contain the installed package does not count.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    # Unlike `describe --dirty`, this takes no lock, which another git command would trip over.
    changed = _git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    return f"{_git('rev-parse', 'HEAD')}{'-dirty' if changed else ''}"


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
