"""The dry run of ``dst train``: the checks that one process can make, what a run costs, and what is probably a mistake.

Nothing is trained or written.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

from dstransformer.config import (
    AUTO_PRECISION,
    BatchStage,
    Config,
    TrainingConfig,
    accumulation_steps,
    fragment_names,
    load_config,
)
from dstransformer.data.augment import describe_augmentation
from dstransformer.data.mixture import Mixture
from dstransformer.data.plan import LengthSums, build_budget
from dstransformer.distributed.launcher import single_process_warning
from dstransformer.errors import counted
from dstransformer.model import parameter_count, training_flops
from dstransformer.training.experiment import Experiment
from dstransformer.training.facts import describe_device, machine_memory, own_device
from dstransformer.training.plan import GIB, Plan, check_memory, plan_run
from dstransformer.training.runtime import check_sections, model_state_bytes
from dstransformer.training.update_stream import build_training_planner

#: More epochs than this cause a warning. Long training on a small corpus takes a few hundred.
MAX_EPOCHS = 500

#: Fewer updates per epoch than this cause a warning: batches hardly vary, and many epochs pass between validations.
MIN_UPDATES_PER_EPOCH = 10

#: Values, what chooses whether they are read, and for which choices they are.
CHOSEN_BY = (
    ("model.max_positions", "model.positions", ("learned",)),
    ("schedule.final", "schedule.kind", ("linear", "cosine", "warmup_stable_decay")),
    ("schedule.decay", "schedule.kind", ("warmup_stable_decay",)),
    ("optimizer.momentum", "optimizer.name", ("muon",)),
    ("optimizer.muon_rate", "optimizer.name", ("muon",)),
)


@dataclass(frozen=True)
class Estimate:
    """The plan of an epoch, and what it costs.

    Of an epoch that is planned in windows, the first window stands for all. Figures of an epoch and of an update are
    those after ``batch.stages``, of updates of full size.

    Attributes:
        pairs: Sentence pairs of the first epoch.
        windows: Windows of the first epoch.
        updates_per_epoch: Updates of the first epoch; other epochs differ by a few.
        stage_updates: About how many updates each stage of ``batch.stages`` has.
        epochs: Number of epochs in ``training.max_updates``.
        src_tokens_per_update: Mean source tokens per update of the first epoch, as they are stored. BPE dropout
            and augmentation increase them, and with them the operations below.
        tgt_tokens_per_update: Mean target tokens per update of the first epoch.
        pairs_per_update: Mean sentence pairs per update of the first epoch.
        accumulation_steps: Micro-batches that each process computes per update.
        parameters: Number of parameters of the model.
        flops_per_update: Mean operations per update of the first epoch, see
            :func:`dstransformer.model.training_flops`.
        flops: Operations of all updates of the run.
    """

    pairs: int
    windows: int
    updates_per_epoch: int
    stage_updates: Sequence[int]
    epochs: float
    src_tokens_per_update: float
    tgt_tokens_per_update: float
    pairs_per_update: float
    accumulation_steps: int
    parameters: int
    flops_per_update: float
    flops: float


@dataclass(frozen=True)
class DryRun:
    """The result of ``dst train --dry-run``.

    Attributes:
        experiment: The experiment, with the configuration of the plan.
        plan: How it would run on devices such as that of this machine.
        estimate: What it costs.
        model_state_gib: Weights, gradients and moments on each GPU in GiB by ZeRO stage, see
            :func:`dstransformer.training.runtime.model_state_bytes`.
        warnings: What is probably a mistake.
    """

    experiment: Experiment
    plan: Plan
    estimate: Estimate
    model_state_gib: Mapping[str, float]
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "config": self.experiment.config.without_secrets().model_dump(),
            "ds_config": dict(self.experiment.ds_config),
            "world_size": self.experiment.world_size,
            "precision": self.experiment.precision,
            "precision_from": self.plan.precision_from,
            "micro_batches_from": self.plan.micro_batches_from,
            "estimate": asdict(self.estimate),
            "model_state_gib": dict(self.model_state_gib),
            "warnings": list(self.warnings),
        }


def dry_run(experiment: Experiment) -> DryRun:
    """Make the plan of a run for processes with the device of this machine, and plan the first epoch. Writes nothing.

    Args:
        experiment: The experiment.

    Raises:
        UserError: :func:`dstransformer.training.run.train` would raise it as well. It also checks what depends on the
            other processes and their devices (the attention backend, the memory of a node), and creates the run folder.
    """
    if not {*experiment.config.deepspeed} <= {*fragment_names(), AUTO_PRECISION}:  # a file of the user's
        check_sections(experiment.ds_config)
    plan = plan_run(experiment, [describe_device(own_device())], experiment.request.resume)
    experiment = experiment.with_config(plan.config)
    config, corpus = experiment.config, experiment.corpus
    corpus.verify()
    check_memory(experiment, 1, machine_memory(), platform.node(), weights=False)
    estimated = estimate(experiment)
    warnings = plan_warnings(config, estimated.updates_per_epoch, estimated.stage_updates)
    warnings += [*filter(None, [single_process_warning(os.environ)]), *plan.warnings]
    vocab_size = corpus.tokenizer.vocab_size
    largest_layer = config.model.d_model * max(config.model.embedding_rows(vocab_size), config.model.d_ff)
    by_stage = model_state_bytes(estimated.parameters, largest_layer, experiment.world_size)
    return DryRun(experiment, plan, estimated, {stage: size / GIB for stage, size in by_stage.items()}, warnings)


def estimate(experiment: Experiment) -> Estimate:
    """Plan the first window and compute the estimates."""
    config, training = experiment.config, experiment.config.training
    budget, stages = build_budget(config.batch), config.batch.stages
    if stages:  # their updates may have fewer pairs than micro-batches
        build_training_planner(experiment, budget).plan(0, 0)
    planner = build_training_planner(experiment, replace(budget, stages=()))
    window, pairs = planner.plan(0, 0), planner.pairs(0)
    order = window.plan.order
    updates = round(window.updates * pairs / len(order))
    model, tokenizer = config.model, experiment.corpus.tokenizer
    sums = LengthSums.of(window.src_lengths[order], window.tgt_lengths[order])
    rows = model.embedding_rows(tokenizer.vocab_size)
    flops = config.loss.passes * training_flops(model, rows, sums) / window.updates
    in_stages = count_stage_updates(stages, updates, experiment.mixture)
    full = count_full_updates(training.max_updates, stages, in_stages)
    return Estimate(
        pairs=pairs,
        windows=planner.windows(0),
        updates_per_epoch=updates,
        stage_updates=[round(count) for count in in_stages],
        epochs=count_epochs(full, updates, experiment.mixture),
        src_tokens_per_update=sums.src_tokens / window.updates,
        tgt_tokens_per_update=sums.tgt_tokens / window.updates,
        pairs_per_update=len(order) / window.updates,
        accumulation_steps=accumulation_steps(config.batch.micro_batch_count, experiment.world_size),
        parameters=parameter_count(model, tokenizer.vocab_size, tokenizer.src.vocab_size),
        flops_per_update=flops,
        flops=flops * full,
    )


def approximate_plan(experiment: Experiment) -> tuple[float, list[float]]:
    """Estimate from the manifest, without planning.

    Returns:
        The epochs of a run, a few percent too many, and the updates of each stage of ``batch.stages``.
    """
    batch, train, mixture = experiment.config.batch, experiment.corpus.manifest.splits["train"], experiment.mixture
    share = 1.0 if mixture is None else mixture.pairs()[0] / train.pairs
    src, tgt = train.src_tokens + train.pairs, train.tgt_tokens + train.pairs  # with end-of-sentence tokens
    first = max(share * src / batch.src_tokens, share * tgt / batch.tgt_tokens, 1.0)
    in_stages = count_stage_updates(batch.stages, first, mixture)
    full = count_full_updates(experiment.config.training.max_updates, batch.stages, in_stages)
    return count_epochs(full, first, mixture), in_stages


def count_epochs(updates: float, first: float, mixture: Mixture | None) -> float:
    """Estimate how many epochs some updates of full size are.

    Args:
        updates: Number of updates.
        first: Updates of the first epoch. Those of other stages of the mixture have more or fewer, as they have pairs.
        mixture: The mixture; None if all epochs hold the same pairs.
    """
    if mixture is None:
        return updates / first
    pairs = mixture.pairs()
    for stage, start in reversed(list(enumerate(mixture.starts))):
        before = _count_updates(start, first, mixture)
        if updates >= before:
            return start + (updates - before) / (first * pairs[stage] / pairs[0])
    return 0.0


def _count_updates(epochs: float, first: float, mixture: Mixture | None) -> float:
    """The inverse of :func:`count_epochs`."""
    if mixture is None:
        return epochs * first
    pairs = mixture.pairs()
    return sum(
        max(0.0, min(end, epochs) - begin) * first * held / pairs[0]
        for (begin, end), held in zip(pairwise([*mixture.starts, math.inf]), pairs, strict=True)
    )


def count_stage_updates(stages: Sequence[BatchStage], first: float, mixture: Mixture | None) -> list[float]:
    """Estimate how many updates each stage of ``batch.stages`` has.

    Args:
        stages: The stages.
        first: Updates of full size in the first epoch.
        mixture: The mixture; None if all epochs hold the same pairs.
    """
    ends = accumulate((stage.epochs for stage in stages), initial=0.0)
    full = [_count_updates(end, first, mixture) for end in ends]
    return [(end - begin) / stage.share for stage, (begin, end) in zip(stages, pairwise(full), strict=True)]


def count_full_updates(updates: float, stages: Sequence[BatchStage], in_stages: Sequence[float]) -> float:
    """How many updates of full size hold as many tokens as the first updates of a run.

    Args:
        updates: Number of updates.
        stages: ``batch.stages``.
        in_stages: The updates of each stage.
    """
    full = 0.0
    for stage, count in zip(stages, in_stages, strict=True):
        full += min(updates, count) * stage.share
        updates -= min(updates, count)
    return full + updates


def plan_warnings(config: Config, updates_per_epoch: float, in_stages: Sequence[float] = ()) -> list[str]:
    """Warnings about settings that are probably mistakes, each with advice.

    Args:
        config: The configuration.
        updates_per_epoch: Updates of full size in an epoch.
        in_stages: The updates of each stage of ``batch.stages``.
    """
    updates, warmup = config.training.max_updates, config.schedule.warmup_steps
    epochs = updates / updates_per_epoch
    warnings = []
    if epochs > MAX_EPOCHS:
        warnings.append(
            f"training.max_updates = {updates:,} is {epochs:,.0f} epochs of this corpus: "
            f"{round(MAX_EPOCHS * updates_per_epoch):,} would be {MAX_EPOCHS}"
        )
    if updates_per_epoch < MIN_UPDATES_PER_EPOCH:
        epoch = counted(round(updates_per_epoch), "update")
        warnings.append(
            f"an epoch has only {epoch}: for a corpus of this size lower batch.src_tokens = "
            f"{config.batch.src_tokens} and batch.tgt_tokens = {config.batch.tgt_tokens}"
        )
    if updates < sum(in_stages):
        warnings.append(
            f"training.max_updates = {updates:,} ends before batch.stages, which take about {sum(in_stages):,.0f} "
            "updates: no update has its full size; shorten the stages"
        )
    if updates < warmup:
        warnings.append(
            f"training.max_updates = {updates} ends before the warm-up (schedule.warmup_steps = {warmup}): the "
            "learning rate never reaches its peak; lower schedule.warmup_steps"
        )
    elif (first := _first_averaged(config)) < warmup:
        warnings.append(
            f"the last {config.checkpoint.average_last} checkpoints reach back to update {first}, into the warm-up "
            f"(schedule.warmup_steps = {warmup}), so the final bundle will be the best on validation instead of "
            "their average: lower schedule.warmup_steps, checkpoint.average_last or checkpoint.every_updates"
        )
    warnings += _length_warnings(config.training)
    if config.optimizer.ema_decay and config.checkpoint.final == "average" and config.checkpoint.average_last > 1:
        warnings.append(
            f"the final bundle averages {config.checkpoint.average_last} checkpoints that are moving averages already "
            f"(optimizer.ema_decay = {config.optimizer.ema_decay}): for the last moving average alone set "
            "checkpoint.average_last=1"
        )
    return [*warnings, *_unused_warnings(config)]


def _unused_warnings(config: Config) -> Iterator[str]:
    """Warnings about values that are not those of the base, and that only another choice reads."""
    base = load_config("base")
    for name, choice, readers in CHOSEN_BY:
        value, chosen = attrgetter(name, choice)(config)
        if chosen not in readers and value != attrgetter(name)(base):
            yield f"{name} = {value} has no effect with {choice} = {chosen}: remove it, or set {choice}={readers[0]}"


def _length_warnings(training: TrainingConfig) -> Iterator[str]:
    """Warnings about what makes sentences longer than planned."""
    for name in ("bpe_dropout", "unigram_alpha"):
        if value := getattr(training, name):
            yield (
                f"training.{name} = {value} makes sentences longer than they are stored: updates hold more tokens than "
                "planned, and take more operations and memory"
            )
    if training.augment:
        yield (
            f"training.augment ({describe_augmentation(training.augment)}) makes sentences longer than they are "
            "stored, capitals and noise above all: updates hold more tokens than planned"
        )


def _first_averaged(config: Config) -> int:
    """The update of the first checkpoint in the final average, ignoring checkpoints written by time."""
    updates, every = config.training.max_updates, config.checkpoint.every_updates
    if every == 0:
        return updates
    regular = updates // every  # checkpoints at multiples of the interval; the last update always has one
    others = config.checkpoint.average_last - (1 if updates % every else 0)
    return max((regular - others + 1) * every, min(every, updates)) if others else updates
