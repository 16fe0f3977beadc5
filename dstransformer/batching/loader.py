"""Updates for one rank, assembled ahead of the step by a background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dstransformer.batching.augment import Augmentation
from dstransformer.batching.batch import PackedBatch, pack_pairs
from dstransformer.batching.bpe_dropout import BpeDropout
from dstransformer.batching.mixture import Mixture
from dstransformer.batching.plan import Budget, EpochPlan, Indices, Lengths, cut_update, deal, plan_epoch
from dstransformer.corpus import Split
from dstransformer.model import LengthSums


@dataclass(frozen=True)
class Position:
    """A place in the data: the next update to compute."""

    epoch: int = 0
    update: int = 0


@dataclass(frozen=True)
class Update:
    """This rank's share of an optimizer step.

    Attributes:
        position: Its place in the data.
        following: The position of the next update.
        batches: This rank's micro-batches, one per accumulation step.
        sums: The lengths of the whole update's sentences, over all ranks. Every rank knows them from the plan; but with
            BPE dropout or augmentation the loader knows those of this rank's sentences only, see
            :attr:`UpdateLoader.samples`.
        parts: The pairs of each micro-batch, over all ranks.
    """

    position: Position
    following: Position
    batches: list[PackedBatch]
    sums: LengthSums
    parts: Sequence[Indices] = ()

    @property
    def src_tokens(self) -> int:
        """Source tokens of the whole update, over all ranks."""
        return self.sums.src_tokens

    @property
    def tgt_tokens(self) -> int:
        """Target tokens of the whole update, over all ranks."""
        return self.sums.tgt_tokens


class UpdateLoader:
    """The endless stream of updates of a training split.

    Args:
        split: The training split of a corpus.
        budget: Limits of an update and the number of its micro-batches.
        seed: The seed of the order of the data.
        rank: The rank of this process.
        world_size: Number of processes; divides ``budget.micro_batches``.
        prefetch: Number of updates kept ready.
        pin_memory: Assemble batches in page-locked memory.
        bpe_dropout: Samples the pieces of each sentence; None takes them as they are stored.
        mixture: Chooses the pairs of each epoch; None takes every pair once.
        augmentation: Changes the text of some pairs; None leaves it as it is stored.
    """

    def __init__(
        self,
        split: Split,
        budget: Budget,
        *,
        seed: int,
        rank: int,
        world_size: int,
        prefetch: int,
        pin_memory: bool,
        bpe_dropout: BpeDropout | None = None,
        mixture: Mixture | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._split = split
        self._budget = budget
        self._seed = seed
        self._mine = deal(budget.micro_batches, rank, world_size)
        self._prefetch = prefetch
        self._pin_memory = pin_memory
        self._bpe_dropout = bpe_dropout
        self._mixture = mixture
        self._augmentation = augmentation
        self.src_lengths, self.tgt_lengths = training_lengths(split)

    @property
    def samples(self) -> bool:
        """Whether pieces are others than are stored. If so, ``Update.sums`` covers this rank's sentences only."""
        return self._bpe_dropout is not None or self._augmentation is not None

    def plan(self, epoch: int) -> EpochPlan:
        """The updates of an epoch."""
        rows = None if self._mixture is None else self._mixture.rows(self._seed, epoch)
        return plan_epoch(self.src_lengths, self.tgt_lengths, self._seed, epoch, self._budget, rows)

    def iter_updates(self, start: Position) -> Generator[Update, None, None]:
        """The updates from ``start`` on, epoch after epoch, without end; closing the generator stops its threads."""
        # Two threads, so that planning the next epoch does not delay the updates of this one.
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="loader") as worker:
            ready: deque[Future[Update]] = deque()
            try:
                for plan, position, following in self._iter_positions(start, worker):
                    ready.append(worker.submit(self._assemble, plan, position, following))
                    if len(ready) > self._prefetch:
                        yield ready.popleft().result()
            finally:
                worker.shutdown(wait=False, cancel_futures=True)

    def _iter_positions(
        self, start: Position, worker: ThreadPoolExecutor
    ) -> Iterator[tuple[EpochPlan, Position, Position]]:
        epoch, first = start.epoch, start.update
        upcoming = worker.submit(self.plan, epoch)
        while True:
            plan = upcoming.result()
            upcoming = worker.submit(self.plan, epoch + 1)
            for number in range(first, plan.updates):
                last = number + 1 == plan.updates
                yield plan, Position(epoch, number), Position(epoch + 1, 0) if last else Position(epoch, number + 1)
            epoch, first = epoch + 1, 0

    def _assemble(self, plan: EpochPlan, position: Position, following: Position) -> Update:
        pairs = plan.update(position.update)
        parts = cut_update(pairs, self.src_lengths, self.tgt_lengths, self._budget.micro_batches)
        mine = [self._split.gather(parts[number]) for number in self._mine]
        place = position.epoch, position.update
        if self._augmentation is not None:
            numbered = zip(mine, self._mine, strict=True)
            mine = [self._augmentation.modify(part, parts[n], *place) for part, n in numbered]
        if self._bpe_dropout is not None:
            numbered = zip(mine, self._mine, strict=True)
            mine = [self._bpe_dropout.sample(part, *place, n) for part, n in numbered]
        if not self.samples:
            sums = LengthSums.of(self.src_lengths[pairs], self.tgt_lengths[pairs])
        else:
            lengths = [np.concatenate(side) + 1 for side in ([part[1] for part in mine], [part[3] for part in mine])]
            sums = LengthSums.of(*lengths)
        batches = [pack_pairs(*part) for part in mine]
        return Update(
            position=position,
            following=following,
            batches=[batch.pin_memory() for batch in batches] if self._pin_memory else batches,
            sums=sums,
            parts=parts,
        )


def training_lengths(split: Split) -> tuple[Lengths, Lengths]:
    """Source and target tokens of every pair, end of sentence included."""
    return split.src_lengths + np.int32(1), split.tgt_lengths + np.int32(1)
