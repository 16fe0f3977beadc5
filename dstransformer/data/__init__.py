"""From a corpus to packed batches: the plan of an epoch, the batch, and the loader."""

from dstransformer.data.batch import PackedBatch, build_batch, pack
from dstransformer.data.loader import Position, Update, UpdateLoader, training_lengths
from dstransformer.data.plan import Budget, EpochPlan, build_budget, check_lengths, cut_update, deal, plan_epoch

__all__ = [
    "Budget",
    "EpochPlan",
    "PackedBatch",
    "Position",
    "Update",
    "UpdateLoader",
    "build_batch",
    "build_budget",
    "check_lengths",
    "cut_update",
    "deal",
    "pack",
    "plan_epoch",
    "training_lengths",
]
