"""From a corpus to packed batches: the plan of an epoch, the batch, and the loader."""

from dstransformer.batching.augment import Augmentation, describe_augmentation
from dstransformer.batching.batch import PackedBatch, build_batch, pack, pack_pairs
from dstransformer.batching.budget import Budget, build_budget, describe_stages
from dstransformer.batching.loader import Position, Update, UpdateLoader
from dstransformer.batching.mixture import Mixture, build_mixture, describe_mixture
from dstransformer.batching.plan import (
    EpochPlan,
    cut_update,
    deal,
    plan_batches,
    plan_epoch,
)
from dstransformer.batching.subwords import BpeDropout, SubwordSampling, UnigramSampling
from dstransformer.batching.windows import (
    PLAN_BYTES,
    SUGGESTED_WINDOW,
    Planner,
    Window,
    build_planner,
    check_split,
    is_windowed,
    plan_memory,
    training_lengths,
)

__all__ = [
    "PLAN_BYTES",
    "SUGGESTED_WINDOW",
    "Augmentation",
    "BpeDropout",
    "Budget",
    "EpochPlan",
    "Mixture",
    "PackedBatch",
    "Planner",
    "Position",
    "SubwordSampling",
    "UnigramSampling",
    "Update",
    "UpdateLoader",
    "Window",
    "build_batch",
    "build_budget",
    "build_mixture",
    "build_planner",
    "check_split",
    "cut_update",
    "deal",
    "describe_augmentation",
    "describe_mixture",
    "describe_stages",
    "is_windowed",
    "pack",
    "pack_pairs",
    "plan_batches",
    "plan_epoch",
    "plan_memory",
    "training_lengths",
]
