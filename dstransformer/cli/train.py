"""``dst train`` and ``dst track``: train a model, or check and describe a run; send its pending records to MLflow."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from dstransformer.cli.options import Command, CommandResult, ExperimentOptions, Folder
from dstransformer.errors import UserError, without_secrets
from dstransformer.io.flags import argument, option

if TYPE_CHECKING:
    from dstransformer.training.estimate import DryRun
    from dstransformer.training.outcome import Outcome


def _run_name(name: str) -> str:
    """The type of ``--name``.

    Raises:
        argparse.ArgumentTypeError: The name is empty, has control characters or is not UTF-8: MLflow cannot store it.
    """
    if not name.strip() or not name.isprintable():
        raise argparse.ArgumentTypeError(f"{name[:60]!r} is empty or has characters that cannot be printed")
    return name


def _run_tag(tag: str) -> tuple[str, str]:
    """The type of ``--tag``: ``NAME=VALUE``.

    Raises:
        argparse.ArgumentTypeError: There is no ``=``, or the name is one that MLflow cannot store or has an option.
    """
    name, equals, value = tag.partition("=")
    if not equals or not re.fullmatch(r"[\w.\-/ ]{1,250}", name) or not value.isprintable():
        raise argparse.ArgumentTypeError(
            f"{tag[:60]!r} is not of the form NAME=VALUE, with letters, digits, spaces or . - _ /"
        )
    if name == "mlflow.runName":
        raise argparse.ArgumentTypeError(f"{tag[:60]!r} would rename the run: use --name")
    return name, value


def _registered_name(name: str) -> str:
    """The type of ``--register``: a name that MLflow's model registry takes.

    Raises:
        argparse.ArgumentTypeError: The registry does not accept the name.
    """
    if (
        not name.strip()
        or not name.isprintable()
        or len(name) > 250
        or set(name) & set("/:\\'\"`%")
        or name in (".", "..")
    ):
        raise argparse.ArgumentTypeError(
            f"{name[:60]!r} cannot name a registered model: write letters, digits, spaces and - _ . only"
        )
    return name


_RegisteredName = Annotated[str, _registered_name]


class Train(
    ExperimentOptions,
    Command,
    in_processes=True,
    examples=(
        "dst train toy --corpus corpora/toy --run runs/toy",
        "deepspeed --hostfile hosts --module dstransformer train base --corpus corpora/en-de --run runs/en-de",
    ),
):
    """Train a model, in one process or in those started by deepspeed, torchrun or srun."""

    corpus: Folder = option("folder that dst-prep built", required=True)
    run: Folder = option("run folder: checkpoints, metrics, bundle", required=True)
    resume: str = option(
        "resume from the latest checkpoint if any, never, or from PATH, which may be an address (auto)",
        "auto|never|PATH",
        default="auto",
    )
    init: Folder | None = option("start from the weights of a bundle, a checkpoint or a run", "BUNDLE")
    profile: int = option(
        "trace N updates with PyTorch's profiler into RUN/profile, and print the operators that took the longest",
        "N",
        default=0,
    )
    name: Annotated[str, _run_name] | None = option("the run's name in MLflow (preset, folder and date)")
    tags: Sequence[Annotated[tuple[str, str], _run_tag]] = option(
        "a tag in MLflow", "NAME=VALUE", flag="--tag", action="append", default=()
    )
    register: _RegisteredName | None = option(
        "make the final bundle a version of this registered model in MLflow", "NAME"
    )
    dry_run: bool = option("print the resolved configuration and its estimates, and train nothing")
    json: bool = option("print the outcome or the dry run as JSON")


@Train.handler
def run(options: Train) -> CommandResult:
    """Train. Only rank 0 prints the outcome."""
    from dstransformer.distributed.launcher import read_processes
    from dstransformer.training.experiment import TrainRequest, resolve_alone
    from dstransformer.training.run import train

    tags = dict(options.tags)
    for name, value in options.tags:
        if tags[name] != value:
            raise UserError(f"--tag {name} is given twice, as {value!r} and {tags[name]!r}: choose one")
    request = TrainRequest(
        preset=options.preset,
        corpus=options.corpus,
        run=options.run,
        overrides=options.overrides,
        fragments=options.ds,
        resume=options.resume,
        name=options.name,
        tags=tags,
        register=options.register,
        init=options.init,
        profile=options.profile,
    )
    is_rank0 = read_processes(os.environ, require_rank=not options.dry_run).rank == 0
    if options.dry_run:
        experiment = resolve_alone(request)
        from dstransformer.training.estimate import dry_run  # imports PyTorch, which takes seconds

        planned = dry_run(experiment)
        text = json.dumps(planned.to_json(), indent=2) if options.json else _describe_dry_run(planned)
        return CommandResult(text if is_rank0 else "")
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints to stdout, which is reserved for the result
        outcome = train(request)
    text = json.dumps(outcome.to_json(), indent=2) if options.json else _describe_outcome(outcome)
    return CommandResult(text if is_rank0 else "", outcome.status)


def _describe_dry_run(planned: DryRun) -> str:
    from dstransformer.config import dump_config
    from dstransformer.data.plan import describe_stages

    experiment, plan, figures = planned.experiment, planned.plan, planned.estimate
    windows = f"   in {figures.windows:,} windows" if figures.windows > 1 else ""
    lines = [
        dump_config(experiment.config.without_secrets()),
        f"DeepSpeed, world size {experiment.world_size}: {json.dumps(experiment.ds_config)}\n",
        f"pairs              {figures.pairs:>14,}{windows}",
        f"updates per epoch  {figures.updates_per_epoch:>14,}   total epochs {figures.epochs:.1f}",
        f"an update holds    {figures.pairs_per_update:>14,.0f}   pairs",
        f"                   {figures.src_tokens_per_update:>14,.0f}   source tokens",
        f"                   {figures.tgt_tokens_per_update:>14,.0f}   target tokens",
        f"accumulation steps {figures.accumulation_steps:>14,}",
        f"parameters         {figures.parameters:>14,}",
        f"FLOPs per update   {figures.flops_per_update:>14.3e}   total {figures.flops:.3e}",
    ]
    if stages := describe_stages(experiment.config.batch.stages, figures.stage_updates):
        lines.append(f"an update may hold {stages}")
    if plan.precision_from is not None:
        lines.append(f"precision          {experiment.precision:>14}   {plan.precision_from}")
    if plan.micro_batches_from is not None:
        kept = plan.micro_batches_from == "checkpoint"
        reason = "as its checkpoint has" if kept else "or more: the run finds by trial how few fit the memory (auto)"
        lines.append(f"micro-batches      {experiment.config.batch.micro_batches:>14,}   {reason}")
    lines += [
        f"model states {stage} {gib:>14.3f}   GiB on each GPU, by DeepSpeed's estimate for its own 16-bit training"
        for stage, gib in planned.model_state_gib.items()
    ]
    lines += [f"warning: {warning}" for warning in planned.warnings]
    return "\n".join(lines)


def _describe_outcome(outcome: Outcome) -> str:
    from dstransformer.tracking.events import format_cost

    if outcome.final is None:
        return f"stopped by {outcome.stopped_by} at step {outcome.step}; run the same command to resume"
    scores = [
        f"{split} {score}"
        for split, evaluation in outcome.evaluations.items()
        for score in dict.fromkeys((evaluation.main, *evaluation.scores))
    ]
    cost = f"training cost: {format_cost(outcome.cost.metrics())}"
    return "\n".join([*scores, *outcome.final.lines(), cost, f"{outcome.run}/bundle"])


class Track(Command, examples=("dst track runs/en-de",)):
    """Send pending tracking records of a run."""

    run: Folder = argument("RUN", "run folder")
    register: _RegisteredName | None = option("make the run's final bundle a version of this registered model", "NAME")


@Track.handler
def send(options: Track) -> CommandResult:
    """Send the pending records of a run, and register its bundle if asked."""
    from dstransformer.tracking.mlflow.location import TrackingState
    from dstransformer.tracking.mlflow.tracked_run import register_bundle, send_pending

    if options.register is not None:
        return CommandResult(register_bundle(options.run, options.register))
    sent = send_pending(options.run)
    state = TrackingState.load(options.run)
    assert state is not None
    return CommandResult(f"{options.run}: {sent} records sent to {without_secrets(state.tracking_uri)}, none pending")
