"""Updates for one rank, assembled ahead of the step by a background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count, pairwise

import numpy as np

from dstransformer.data import Split
from dstransformer.data.augment import Augmentation
from dstransformer.data.links import LinkReader
from dstransformer.data.packing import PackedBatch, pack_pairs
from dstransformer.data.plan import Indices, LengthSums, Position, deal
from dstransformer.data.subwords import SubwordSampling
from dstransformer.data.windows import Planner, Window


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


class PairReader:
    """Reads the micro-batches of a training split.

    Args:
        split: The training split of a corpus.
        subwords: Samples the pieces of each sentence; None takes them as they are stored.
        augmentation: Changes the text of some pairs; None leaves it as it is stored.
        links: Reads the alignments of pairs; None leaves them out.

    Attributes:
        samples: Whether pieces differ from the stored ones, so that lengths are known only when they are read.
    """

    def __init__(
        self,
        split: Split,
        subwords: SubwordSampling | None = None,
        augmentation: Augmentation | None = None,
        links: LinkReader | None = None,
    ) -> None:
        self._split = split
        self._subwords = subwords
        self._augmentation = augmentation
        self._links = links
        self.samples = subwords is not None or augmentation is not None

    def read(self, rows: Indices, position: Position, micro_batch: int) -> PackedBatch:
        """A micro-batch, given by its number within the update at a position, and by the ``rows`` of its pairs."""
        stored = pairs = self._split.gather(rows)
        if self._augmentation is not None:
            pairs = self._augmentation.modify(pairs, rows, position)
        if self._subwords is not None:
            pairs = self._subwords.sample(pairs, position, micro_batch)
        links = None if self._links is None else self._links.read(rows, stored, pairs)
        return pack_pairs(*pairs)._replace(links=links)


class UpdateLoader:
    """The endless stream of updates of a training split.

    Args:
        planner: Plans the updates, see :func:`build_planner`.
        reader: Reads their pairs.
        rank: The rank of this process.
        world_size: Number of processes; divides the number of micro-batches.
        prefetch: Number of updates kept ready.
        pin_memory: Assemble batches in page-locked memory.

    Attributes:
        samples: Whether pieces differ from the stored ones. If so, ``Update.sums`` covers this rank's sentences only.
    """

    def __init__(
        self, planner: Planner, reader: PairReader, *, rank: int, world_size: int, prefetch: int, pin_memory: bool
    ) -> None:
        self._planner = planner
        self._reader = reader
        self._dealt = deal(planner.budget.micro_batches, rank, world_size)
        self._prefetch = prefetch
        self._pin_memory = pin_memory
        self.samples = reader.samples

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
        """The window of each update, its position and that of the next update."""
        planned = worker.submit(self.plan, start.epoch, start.window)
        for first, next_first in pairwise(self._iter_windows(start)):
            window = planned.result()
            planned = worker.submit(self.plan, next_first.epoch, next_first.window)  # while this one is assembled
            positions = [replace(first, update=number) for number in range(first.update, window.updates)]
            for position, following in pairwise([*positions, next_first]):
                yield window, position, following

    def _iter_windows(self, start: Position) -> Iterator[Position]:
        """The position at which training enters each window, from ``start`` on."""
        yield start
        for epoch in count(start.epoch):
            first = start.window + 1 if epoch == start.epoch else 0
            for window in range(first, self._planner.windows(epoch)):
                yield Position(epoch, window=window)

    def assemble(self, window: Window, position: Position, following: Position) -> Update:
        """This rank's share of an update of a window."""
        places = window.cut(position.update, self._planner.budget.micro_batches)
        pairs = [window.pairs(micro_batch) for micro_batch in places]
        batches = [self._reader.read(pairs[number], position, number) for number in self._dealt]
        if self.samples:
            src_lengths = np.concatenate([batch.src_packing.lengths.numpy() for batch in batches])
            tgt_lengths = np.concatenate([batch.tgt_packing.lengths.numpy() for batch in batches])
        else:
            update = window.plan.update(position.update)
            src_lengths, tgt_lengths = window.src_lengths[update], window.tgt_lengths[update]
        return Update(
            position=position,
            following=following,
            batches=[batch.pin_memory() for batch in batches] if self._pin_memory else batches,
            sums=LengthSums.of(src_lengths, tgt_lengths),
            pairs=pairs,
        )
