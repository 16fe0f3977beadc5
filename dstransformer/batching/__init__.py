"""From a corpus to packed batches: the plan of an epoch, the batch, and the loader."""

from dstransformer.batching.augment import Augmentation, describe_augmentation
from dstransformer.batching.batch import PackedBatch, build_batch, pack, pack_pairs
from dstransformer.batching.bpe_dropout import BpeDropout
from dstransformer.batching.loader import Position, Update, UpdateLoader, training_lengths
from dstransformer.batching.mixture import Mixture, build_mixture
from dstransformer.batching.plan import (
    Budget,
    EpochPlan,
    build_budget,
    check_lengths,
    cut_update,
    deal,
    plan_batches,
    plan_epoch,
)

__all__ = [
    "Augmentation",
    "BpeDropout",
    "Budget",
    "EpochPlan",
    "Mixture",
    "PackedBatch",
    "Position",
    "Update",
    "UpdateLoader",
    "build_batch",
    "build_budget",
    "build_mixture",
    "check_lengths",
    "cut_update",
    "deal",
    "describe_augmentation",
    "pack",
    "pack_pairs",
    "plan_batches",
    "plan_epoch",
    "training_lengths",
]
