"""The updates of a small corpus."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

from dstransformer.data import Split
from dstransformer.data.augment import Augmentation
from dstransformer.data.loader import PairReader, Update, UpdateLoader
from dstransformer.data.plan import Budget, Position
from dstransformer.data.subwords import SubwordSampling
from dstransformer.data.windows import build_planner


def build_loader(
    split: Split,
    budget: Budget,
    *,
    seed: int = 1,
    window_pairs: int = 0,
    rank: int = 0,
    world_size: int = 1,
    prefetch: int = 2,
    subwords: SubwordSampling | None = None,
    augmentation: Augmentation | None = None,
) -> UpdateLoader:
    planner = build_planner(split, budget, seed, None, window_pairs)
    reader = PairReader(split, subwords, augmentation)
    return UpdateLoader(planner, reader, rank=rank, world_size=world_size, prefetch=prefetch, pin_memory=False)


def take(loader: UpdateLoader, count: int, start: Position | None = None) -> list[Update]:
    """The updates from a position on; by default from the first one."""
    with closing(loader.iter_updates(start or Position())) as updates:
        return list(islice(updates, count))
