"""What a run will be, before it runs: the figures that ``dst train --dry-run`` prints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dstransformer.config import Config, accumulation_steps
from dstransformer.corpus import Corpus
from dstransformer.data import build_budget, plan_epoch, training_lengths
from dstransformer.model import parameter_count

GIB = 2**30

#: A plan of more epochs is said to be odd; long trainings on small corpora have a few hundred.
MOST_EPOCHS = 500

#: An epoch of fewer updates is said to be odd: its order hardly varies, and validation comes after many epochs.
LEAST_UPDATES = 10


@dataclass(frozen=True)
class Estimate:
    """Figures of a plan and the memory of model states by ZeRO stage.

    Attributes:
        pairs: Sentence pairs of the training split.
        updates_per_epoch: Of the first epoch; others differ by a few.
        epochs: That ``training.max_updates`` make.
        src_tokens_per_update: Mean, over the first epoch.
        tgt_tokens_per_update: Mean, over the first epoch.
        pairs_per_update: Mean, over the first epoch.
        accumulation_steps: Micro-batches that each process computes one after the other.
        parameters: Weights of the model.
        model_state_gib: Weights, gradients and Adam's states a process, in GiB, by ZeRO stage; activations come on top.
    """

    pairs: int
    updates_per_epoch: int
    epochs: float
    src_tokens_per_update: float
    tgt_tokens_per_update: float
    pairs_per_update: float
    accumulation_steps: int
    parameters: int
    model_state_gib: dict[str, float]


def estimate(config: Config, corpus: Corpus, world_size: int, half_precision: bool) -> Estimate:
    """Plan the first epoch and count."""
    split = corpus.split("train")
    src_lengths, tgt_lengths = training_lengths(split)
    plan = plan_epoch(src_lengths, tgt_lengths, config.training.seed, 0, build_budget(config.batch))
    parameters = parameter_count(config.model, corpus.tokenizer.vocab_size)
    return Estimate(
        pairs=len(split),
        updates_per_epoch=plan.updates,
        epochs=config.training.max_updates / plan.updates,
        src_tokens_per_update=float(src_lengths.sum(dtype=np.int64) / plan.updates),
        tgt_tokens_per_update=float(tgt_lengths.sum(dtype=np.int64) / plan.updates),
        pairs_per_update=len(split) / plan.updates,
        accumulation_steps=accumulation_steps(config.batch.micro_batches, world_size),
        parameters=parameters,
        model_state_gib={
            f"zero{stage}": bytes_per_parameter(stage, world_size, half_precision) * parameters / GIB
            for stage in range(4)
        },
    )


def approximate_updates(config: Config, corpus: Corpus) -> float:
    """Updates of an epoch by the manifest's counts, without planning one: a few percent too low."""
    train = corpus.manifest.splits["train"]
    src, tgt = train.src_tokens + train.pairs, train.tgt_tokens + train.pairs  # with the end of each sentence
    return max(src / config.batch.src_tokens, tgt / config.batch.tgt_tokens, 1.0)


def odd_plan(config: Config, updates_per_epoch: float) -> list[str]:
    """What of a plan is probably not meant, each with what to do about it."""
    updates, warmup = config.training.max_updates, config.schedule.warmup_steps
    epochs = updates / updates_per_epoch
    warnings = []
    if epochs > MOST_EPOCHS:
        warnings.append(
            f"training.max_updates = {updates:,} is {epochs:,.0f} epochs of this corpus: "
            f"{round(MOST_EPOCHS * updates_per_epoch):,} would be {MOST_EPOCHS}"
        )
    if updates_per_epoch < LEAST_UPDATES:
        warnings.append(
            f"an epoch is only {updates_per_epoch:,.0f} updates: for a corpus of this size lower batch.src_tokens = "
            f"{config.batch.src_tokens} and batch.tgt_tokens = {config.batch.tgt_tokens}"
        )
    if updates < warmup:
        warnings.append(
            f"training.max_updates = {updates} ends before the warm-up (schedule.warmup_steps = {warmup}): the rate "
            "never reaches its peak; lower schedule.warmup_steps"
        )
    elif (first := _first_averaged(config)) < warmup:
        warnings.append(
            f"the last {config.checkpoint.average_last} checkpoints reach back to update {first}, into the warm-up "
            f"(schedule.warmup_steps = {warmup}), so the final bundle will be the best on validation and not their "
            "average: lower schedule.warmup_steps, checkpoint.average_last or checkpoint.every_updates"
        )
    return warnings


def _first_averaged(config: Config) -> int:
    """The update of the first checkpoint that the final average takes; those by time are not known before."""
    updates, every = config.training.max_updates, config.checkpoint.every_updates
    if every == 0:
        return updates
    regular = updates // every  # checkpoints at multiples of the interval; the last update has one anyway
    others = config.checkpoint.average_last - (1 if updates % every else 0)
    return max((regular - others + 1) * every, min(every, updates)) if others else updates


def bytes_per_parameter(stage: int, world_size: int, half_precision: bool) -> float:
    """Bytes of model states that a weight costs one process (Rajbhandari et al., 2020, section 3.1 and figure 1).

    Half precision: 2 for the weight, 2 for the gradient, 12 for Adam's moments and the fp32 weight; fp32: 4, 4 and 8.
    Stage 1 shares the optimizer's part among the processes, stage 2 the gradient's too, stage 3 all.
    """
    weight, gradient, optimizer = (2.0, 2.0, 12.0) if half_precision else (4.0, 4.0, 8.0)
    if stage >= 1:
        optimizer /= world_size
    if stage >= 2:
        gradient /= world_size
    if stage >= 3:
        weight /= world_size
    return weight + gradient + optimizer
