"""Plans whole epochs, or windows of an epoch if the lengths of all pairs do not fit into memory.

In windows, the pairs of the corpus lie in blocks of neighbours. An epoch takes the blocks in a random order, as many at
a time as make a window. The pairs of a window are shuffled and divided into updates as those of a whole corpus are. So
a window is a function of seed, epoch and its number, and is planned without the windows before it: a run resumes at
any of them. Blocks are smaller than shards, so that a window samples every part of the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dstransformer.data import Split
from dstransformer.data.mixture import Mixture
from dstransformer.data.plan import (
    Budget,
    EpochPlan,
    Indices,
    Lengths,
    check_lengths,
    cut_update,
    plan_epoch,
    plan_updates,
)
from dstransformer.errors import ConfigError

#: Maximum pairs of a block, and minimum blocks of a window. Changing them changes the updates.
BLOCK_PAIRS = 1024
WINDOW_BLOCKS = 256

#: Bytes of memory for planning: for each pair whose lengths are in memory, and for each use of a pair (a mixture may
#: use it several times) in an order. There are the orders of this epoch and of the next.
_LENGTH_BYTES, _ORDER_BYTES = 8, 4

#: Maximum pairs that are planned at once, because the order is int32.
MAX_PAIRS = 2**31 - 1

#: Pairs of a window that errors suggest: about half a GB of memory in each process.
SUGGESTED_WINDOW = 20_000_000

#: Separates the random numbers of windows from those of epochs, of the mixture and of subword sampling.
_STREAM = 2


@dataclass(frozen=True)
class Window:
    """Updates that are planned at once. The plan refers to places, each of which holds a pair of the corpus.

    Attributes:
        plan: The updates.
        src_lengths: Source tokens of the pair at each place, end of sentence included, ``(places,)``.
        tgt_lengths: Target tokens of the pair at each place, end of sentence included, ``(places,)``.
        firsts: The pair at the first place of each block, ``(blocks,)``.
        places: The first place of each block, ``(blocks,)``.
    """

    plan: EpochPlan
    src_lengths: Lengths
    tgt_lengths: Lengths
    firsts: Indices
    places: Indices

    @property
    def updates(self) -> int:
        """Number of updates."""
        return self.plan.updates

    def update(self, number: int) -> Indices:
        """The pairs of an update, in random order."""
        return self.pairs(self.plan.update(number))

    def cut(self, number: int, micro_batches: int) -> list[Indices]:
        """The places of an update in micro-batches, see :func:`cut_update`."""
        return cut_update(self.plan.update(number), self.src_lengths, self.tgt_lengths, micro_batches)

    def pairs(self, places: Indices) -> Indices:
        """The pairs of the corpus at some places."""
        block = np.searchsorted(self.places, places, side="right") - 1
        return self.firsts[block] + places - self.places[block]


def build_planner(split: Split, budget: Budget, seed: int, mixture: Mixture | None, window_pairs: int) -> Planner:
    """Build the planner of a training split; without a mixture an epoch takes every pair once.

    A split with no more than ``window_pairs`` pairs is planned as a whole; so is any if that is 0.

    Raises:
        ConfigError: The split has too many pairs to be planned as a whole, or a stage of the mixture takes no block.
    """
    if is_windowed(len(split), window_pairs):
        block_pairs = min(BLOCK_PAIRS, max(1, window_pairs // WINDOW_BLOCKS))
        return WindowPlanner(split, budget, seed, mixture, window_pairs, block_pairs)
    if len(split) > MAX_PAIRS:
        raise ConfigError(
            f"the training split has {len(split):,} pairs, more than can be planned at once: set "
            f"training.window_pairs={SUGGESTED_WINDOW}"
        )
    return EpochPlanner(split, budget, seed, mixture)


def is_windowed(pairs: int, window_pairs: int) -> bool:
    """Whether a corpus of this many pairs is planned in windows."""
    return 0 < window_pairs < pairs


def plan_memory(pairs: int, mixture: Mixture | None, window_pairs: int) -> tuple[int, int]:
    """The pairs that are planned at once, and the bytes of memory that it takes in each process.

    Repeated pairs count as often as they are used. ``pairs`` is the size of the training split.
    """
    uses = pairs if mixture is None else round(max(mixture.pairs()))
    if is_windowed(pairs, window_pairs):  # of a window and the next, a repeated block as often as it is used
        return min(uses, window_pairs), 2 * (_LENGTH_BYTES + _ORDER_BYTES) * min(uses, window_pairs)
    if mixture is None:
        return uses, _LENGTH_BYTES * pairs + 2 * _ORDER_BYTES * uses
    # The order of a source, which may be larger than its share of an epoch, and a copy of the pairs chosen.
    return uses, _LENGTH_BYTES * pairs + _ORDER_BYTES * (max(mixture.sizes) + 3 * uses)


class EpochPlanner:
    """Plans whole epochs: an epoch is one window. The lengths of all pairs are held in memory."""

    def __init__(self, split: Split, budget: Budget, seed: int, mixture: Mixture | None) -> None:
        self.budget = budget
        self._seed = seed
        self._mixture = mixture
        self._lengths = training_lengths(split)

    def windows(self, epoch: int) -> int:
        """Number of windows of an epoch: the whole epoch is one."""
        del epoch
        return 1

    def pairs(self, epoch: int) -> int:
        """Number of pairs of an epoch."""
        return len(self._lengths[0]) if self._mixture is None else len(self._mixture.rows(self._seed, epoch))

    def plan(self, epoch: int, window: int) -> Window:
        """The updates of an epoch.

        Raises:
            DataError: An update would hold fewer pairs than micro-batches.
        """
        del window
        rows = None if self._mixture is None else self._mixture.rows(self._seed, epoch)
        plan = plan_epoch(*self._lengths, self._seed, epoch, self.budget, rows)
        start = np.zeros(1, dtype=np.int64)
        return Window(plan, *self._lengths, start, start)


class WindowPlanner:
    """Plans an epoch window by window. Only the lengths of a window are held in memory.

    With a mixture, the blocks of a source are used as often as its weight says, in place of its pairs.
    """

    def __init__(
        self,
        split: Split,
        budget: Budget,
        seed: int,
        mixture: Mixture | None,
        window_pairs: int,
        block_pairs: int = BLOCK_PAIRS,
    ) -> None:
        self._split = split
        self.budget = budget
        self._seed = seed
        self._window_pairs = window_pairs
        sizes = (len(split),) if mixture is None else mixture.sizes
        blocks = tuple(-(-size // block_pairs) for size in sizes)
        # The first pair of each block and the end of the last; blocks of a source have the same size, or one pair less.
        borders, begin = [np.zeros(1, dtype=np.int64)], 0
        for size, count in zip(sizes, blocks, strict=True):
            borders.append(begin + np.arange(1, count + 1) * size // max(count, 1))
            begin += size
        self._borders = np.concatenate(borders)
        self._mixture = Mixture(blocks, (0,), ((1.0,),)) if mixture is None else replace(mixture, sizes=blocks)
        for number, weights in enumerate(self._mixture.weights, 1):
            if not any(weight * size >= 1 for weight, size in zip(weights, blocks, strict=True)):
                raise ConfigError(
                    f"stage {number} of the mixture takes less than one block of {block_pairs:,} pairs in an epoch: "
                    "raise its weights, or set training.window_pairs=0"
                )

    def windows(self, epoch: int) -> int:
        """Number of windows of an epoch; all have the same number of blocks, or one more."""
        return self._count_windows(self._mixture.rows(self._seed, epoch))

    def pairs(self, epoch: int) -> int:
        """Number of pairs of an epoch."""
        return self._count_pairs(self._mixture.rows(self._seed, epoch))

    def plan(self, epoch: int, window: int) -> Window:
        """The updates of a window.

        Raises:
            DataError: An update would hold fewer pairs than micro-batches.
        """
        blocks = self._mixture.rows(self._seed, epoch)
        count = self._count_windows(blocks)
        shuffled = np.random.default_rng((self._seed, epoch, _STREAM)).permutation(blocks)
        first, end = (len(blocks) * number // count for number in (window, window + 1))
        chosen = np.sort(shuffled[first:end])  # the disk is read in one direction
        firsts, ends = self._borders[chosen], self._borders[chosen + 1]
        lengths = _read_lengths(self._split, firsts, ends)
        random = np.random.default_rng((self._seed, epoch, _STREAM, window + 1))
        sizes = ends - firsts
        passed = [self._count_pairs(shuffled[:block]) / self._count_pairs(blocks) for block in (first, end)]
        plan = plan_updates(*lengths, random, self.budget, (epoch + passed[0], epoch + passed[1]))
        return Window(plan, *lengths, firsts, np.cumsum(sizes) - sizes)

    def _count_windows(self, blocks: npt.NDArray[np.int32]) -> int:
        return min(len(blocks), -(-self._count_pairs(blocks) // self._window_pairs))

    def _count_pairs(self, blocks: npt.NDArray[np.int32]) -> int:
        return int((self._borders[blocks + 1] - self._borders[blocks]).sum())


#: Plans epochs, window by window.
Planner = EpochPlanner | WindowPlanner


def check_split(split: Split, budget: Budget) -> None:
    """Refuse a training split with a pair that exceeds the budget.

    Raises:
        DataError: A pair exceeds the budget; the message has its number.
    """
    info = split.info
    least = budget.smallest
    if info.src_lengths.max < least.src_tokens and info.tgt_lengths.max < least.tgt_tokens:
        return
    first = 0
    for shard in split.info.shards:
        lengths = _read_lengths(split, np.array([first]), np.array([first + shard.rows]))
        check_lengths(*lengths, budget, first)
        first += shard.rows


def training_lengths(split: Split) -> tuple[Lengths, Lengths]:
    """Source and target tokens of every pair, end of sentence included."""
    return _read_lengths(split, np.array([0]), np.array([len(split)]))


def _read_lengths(split: Split, begins: Indices, ends: Indices) -> tuple[Lengths, Lengths]:
    src, tgt = split.lengths(begins, ends)
    np.add(src, 1, out=src)  # the end of sentence
    np.add(tgt, 1, out=tgt)
    return src, tgt
