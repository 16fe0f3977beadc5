"""Updates for one rank, assembled ahead of the step by a background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from dstransformer.data import Split
from dstransformer.data.augment import Augmentation
from dstransformer.data.links import LinkReader
from dstransformer.data.mixture import Mixture
from dstransformer.data.packing import Links, PackedBatch, pack_pairs
from dstransformer.data.plan import Budget, Indices, LengthSums, Position, deal
from dstransformer.data.subwords import Pairs, SubwordSampling
from dstransformer.data.windows import Window, build_planner


@dataclass(frozen=True)
class Update:
    """This rank's share of an optimizer step.

    Attributes:
        position: Its position in the data.
        following: The position of the next update.
        batches: This rank's micro-batches, one per accumulation step; to be taken once.
        sums: The lengths of the whole update's sentences, over all ranks. Every rank knows them from the plan; but with
            BPE dropout or augmentation the loader knows those of this rank's sentences only, see
            :attr:`UpdateLoader.samples`.
        pairs: Those of each micro-batch, over all ranks.
    """

    position: Position
    following: Position
    batches: Iterable[PackedBatch]
    sums: LengthSums
    pairs: Sequence[Indices] = ()

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
        subwords: Samples the pieces of each sentence; None takes them as they are stored.
        mixture: Chooses the pairs of each epoch; None takes every pair once.
        window_pairs: Pairs that are planned at once; 0 plans whole epochs. See :func:`build_planner`.
        augmentation: Changes the text of some pairs; None leaves it as it is stored.
        links: Reads the alignments of pairs; None leaves them out.
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
        subwords: SubwordSampling | None = None,
        mixture: Mixture | None = None,
        window_pairs: int = 0,
        augmentation: Augmentation | None = None,
        links: LinkReader | None = None,
    ) -> None:
        self._split = split
        self._micro_batches = budget.micro_batches
        self._dealt = deal(budget.micro_batches, rank, world_size)
        self._prefetch = prefetch
        self._pin_memory = pin_memory
        self._subwords = subwords
        self._planner = build_planner(split, budget, seed, mixture, window_pairs)
        self._augmentation = augmentation
        self._links = links

    @property
    def samples(self) -> bool:
        """Whether pieces differ from the stored ones. If so, ``Update.sums`` covers this rank's sentences only."""
        return self._subwords is not None or self._augmentation is not None

    def plan(self, epoch: int, window: int = 0) -> Window:
        """The updates of a window."""
        return self._planner.plan(epoch, window)

    def iter_updates(self, start: Position) -> Generator[Update, None, None]:
        """The updates from ``start`` on, epoch after epoch, without end; closing the generator stops its threads."""
        # Two threads, so that planning the next window does not delay the updates of this one.
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="loader") as worker:
            ready: deque[Future[Update]] = deque()
            try:
                for window, position, following in self._iter_positions(start, worker):
                    ready.append(worker.submit(self.assemble, window, position, following))
                    if len(ready) > self._prefetch:
                        yield ready.popleft().result()
            finally:
                worker.shutdown(wait=False, cancel_futures=True)

    def _iter_positions(
        self, start: Position, worker: ThreadPoolExecutor
    ) -> Iterator[tuple[Window, Position, Position]]:
        starts = self._iter_windows(start)
        first = next(starts)
        planned = worker.submit(self.plan, first.epoch, first.window)
        while True:
            window = planned.result()
            next_first = next(starts)
            planned = worker.submit(self.plan, next_first.epoch, next_first.window)
            for number in range(first.update, window.updates):
                following = replace(first, update=number + 1) if number + 1 < window.updates else next_first
                yield window, replace(first, update=number), following
            first = next_first

    def _iter_windows(self, start: Position) -> Iterator[Position]:
        """The position at which training enters each window, from ``start`` on."""
        yield start
        epoch, window = start.epoch, start.window + 1
        while True:
            for number in range(window, self._planner.windows(epoch)):
                yield Position(epoch, 0, number)
            epoch, window = epoch + 1, 0

    def assemble(self, window: Window, position: Position, following: Position) -> Update:
        """This rank's share of an update of a window."""
        places = window.cut(position.update, self._micro_batches)
        pairs = [window.pairs(micro_batch) for micro_batch in places]
        own = [self._read(pairs[number], position, number) for number in self._dealt]
        if not self.samples:
            every = np.concatenate(places)
            sums = LengthSums.of(window.src_lengths[every], window.tgt_lengths[every])
        else:
            lengths = [np.concatenate([read[side] for read, _ in own]) + 1 for side in (1, 3)]
            sums = LengthSums.of(*lengths)
        batches = [pack_pairs(*read)._replace(links=links) for read, links in own]
        return Update(
            position=position,
            following=following,
            batches=[batch.pin_memory() for batch in batches] if self._pin_memory else batches,
            sums=sums,
            pairs=pairs,
        )

    def _read(self, rows: Indices, position: Position, micro_batch: int) -> tuple[Pairs, Links | None]:
        """The pairs of a micro-batch, in other pieces if they are sampled or augmented, and their alignments."""
        stored = pairs = self._split.gather(rows)
        epoch, update, window = position.epoch, position.update, position.window
        if self._augmentation is not None:
            pairs = self._augmentation.modify(pairs, rows, epoch, update, window)
        if self._subwords is not None:
            pairs = self._subwords.sample(pairs, epoch, update, micro_batch, window)
        return pairs, None if self._links is None else self._links.read(rows, stored, pairs)
