"""``dst train``: train a model, or check and describe a run with ``--dry-run``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

from dstransformer.cli.options import (
    Command,
    CommandResult,
    Experiment,
    Folder,
    RegisteredName,
    run_name,
    run_tag,
)
from dstransformer.errors import UserError
from dstransformer.io.flags import option
from dstransformer.training.devices import GPU_MEMORY

if TYPE_CHECKING:
    from dstransformer.training.dry_run import DryRun
    from dstransformer.training.find_batch import FoundBatch
    from dstransformer.training.run import Outcome
    from dstransformer.training.setup import TrainRequest


class Train(
    Experiment,
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
    resume: str | None = option(
        "resume from the latest checkpoint if any, never, or from PATH, which may be an address (auto)",
        "auto|never|PATH",
    )
    init: Folder | None = option("start from the weights of a bundle, a checkpoint or a run", "BUNDLE")
    profile: int = option(
        "trace N updates with PyTorch's profiler into RUN/profile, and print the operators that took the longest",
        "N",
        default=0,
    )
    name: Annotated[str, run_name] | None = option("the run's name in MLflow (preset, folder and date)")
    tags: Sequence[Annotated[tuple[str, str], run_tag]] = option(
        "a tag in MLflow", "NAME=VALUE", flag="--tag", action="append", default=()
    )
    register: RegisteredName | None = option(
        "make the final bundle a version of this registered model in MLflow; the best has the alias champion", "NAME"
    )
    dry_run: bool = option("print the resolved configuration and estimates only")
    device: str | None = option("the GPU that a dry run is for (this machine's)", choices=GPU_MEMORY)
    find_batch: bool = option("find the largest update that fits the memory, by trial; train nothing and write nothing")
    json: bool = option("print the outcome, the dry run or the batch as JSON")


@Train.handler
def run(options: Train) -> CommandResult:
    """Train. Only rank 0 prints the outcome."""
    from dstransformer.distributed.launcher import read_processes
    from dstransformer.training.setup import resolve_alone, resolve_on_all

    request = _request(options)
    if options.device is not None and not options.dry_run:
        raise UserError(f"--device {options.device} is for a dry run: add --dry-run, or leave it out")
    is_rank0 = read_processes(os.environ, require_rank=not options.dry_run).rank == 0
    if options.find_batch:
        text = _find_batch(options, request)
        return CommandResult(text if is_rank0 else "")
    # A mistake is refused before the rest is imported, which takes seconds.
    setup = (resolve_alone if options.dry_run else resolve_on_all)(request)
    if options.dry_run:
        from dstransformer.training.dry_run import dry_run

        planned = dry_run(request, options.device, setup)
        text = json.dumps(planned.to_json(), indent=2) if options.json else _describe_dry_run(planned)
        return CommandResult(text if is_rank0 else "")
    from dstransformer.training.run import train

    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints to stdout, which is reserved for the result
        outcome = train(request, setup)
    text = json.dumps(outcome.to_json(), indent=2) if options.json else _describe_outcome(outcome)
    return CommandResult(text if is_rank0 else "", outcome.status)


def _request(options: Train) -> TrainRequest:
    from dstransformer.training.setup import TrainRequest

    return TrainRequest(
        preset=options.preset,
        corpus=options.corpus,
        run=options.run,
        overrides=options.overrides,
        fragments=options.ds,
        resume="auto" if options.resume is None else options.resume,
        name=options.name,
        tags=_tags(options.tags),
        register=options.register,
        init=options.init,
        profile=options.profile,
    )


def _tags(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    tags = dict(given)
    for name, value in given:
        if tags[name] != value:
            raise UserError(f"--tag {name} is given twice, as {value!r} and {tags[name]!r}: choose one")
    return tags


def _find_batch(options: Train, request: TrainRequest) -> str:
    for name, given in (("--dry-run", options.dry_run), (f"--resume {options.resume}", options.resume is not None)):
        if given:
            raise UserError(f"--find-batch finds the batch of a new run, and trains nothing: leave out {name}")
    from dstransformer.training.setup import resolve_on_all

    request = replace(request, overrides=[*request.overrides, "batch.micro_batches=auto"], resume="never")
    setup = resolve_on_all(request)
    from dstransformer.training.find_batch import find_batch

    found = find_batch(request, setup)
    return json.dumps(asdict(found), indent=2) if options.json else _describe_batch(found)


def _describe_batch(found: FoundBatch) -> str:
    processes = found.micro_batches
    src, tgt = found.src_tokens // processes, found.tgt_tokens // processes
    what = "an update of the whole training split fits" if found.holds_all else "the largest update that fits"
    where = f"each of {processes} processes" if processes > 1 else "one process"
    lines = [
        f"{what}: a micro-batch of {src:,} source and {tgt:,} target tokens on {where}, which takes "
        f"{found.peak_gib:,.2f} GiB of the {found.usable_gib:,.2f} GiB that it may use ({found.device})",
        f"updates of the configured size fit with --set batch.micro_batches={found.configured}",
        *(f"warning: {warning}" for warning in found.warnings),
    ]
    return "\n".join([*lines, found.overrides])


def _describe_dry_run(planned: DryRun) -> str:
    from dstransformer.config import dump_config
    from dstransformer.data.plan import describe_stages

    setup, figures = planned.setup, planned.estimate
    windows = f"   in {figures.windows:,} windows" if figures.windows > 1 else ""
    lines = [
        dump_config(setup.config.without_secrets()),
        f"DeepSpeed, world size {setup.world_size}: {json.dumps(setup.ds_config)}\n",
        f"pairs              {figures.pairs:>14,}{windows}",
        f"updates per epoch  {figures.updates_per_epoch:>14,}   total epochs {figures.epochs:.1f}",
        f"an update holds    {figures.pairs_per_update:>14,.0f}   pairs",
        f"                   {figures.src_tokens_per_update:>14,.0f}   source tokens",
        f"                   {figures.tgt_tokens_per_update:>14,.0f}   target tokens",
        f"accumulation steps {figures.accumulation_steps:>14,}",
        f"parameters         {figures.parameters:>14,}",
        f"FLOPs per update   {figures.flops_per_update:>14.3e}   total {figures.flops:.3e}",
    ]
    if stages := describe_stages(setup.config.batch.stages, figures.stage_updates):
        lines.append(f"an update may hold {stages}")
    if setup.precision_from is not None:
        lines.append(f"precision          {setup.precision:>14}   {setup.precision_from}")
    if setup.micro_batches_from is not None:
        lines.append(f"micro-batches      {setup.config.batch.micro_batches:>14,}   {setup.micro_batches_from}")
    lines += [
        f"model states {stage} {gib:>14.3f}   GiB per process, without activations"
        for stage, gib in figures.model_state_gib.items()
    ]
    lines.append(_describe_peak_memory(figures.peak_memory_gib, planned.usable_gib))
    lines += [f"warning: {warning}" for warning in planned.warnings]
    return "\n".join(lines)


def _describe_peak_memory(gib: float | None, usable: float | None) -> str:
    if gib is None:
        return "peak memory        not estimated: only for GPUs with the backend varlen, without offloading and R-Drop"
    fits = ""
    if usable is not None:
        room = f"{usable:.1f} GiB usable beside CUDA's context and a margin of 10%"
        fits = f"; {'fits' if gib <= usable else 'does not fit'}: {room}"
    return (
        f"peak memory        {gib:>14.3f}   GiB of tensors per GPU with activations, by a formula for the attention "
        f"backend varlen{fits}"
    )


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
