"""Planning in windows: memory and time for 10^9 pairs, and how well the windows shuffle.

The corpus of 10^9 pairs is 1,000 shards, read as any corpus is; there are links to four, so that it fits on a disk. The
shuffle is measured on lengths alone, for a corpus of 1/100 that can be planned as a whole too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.lib.bars import print_at_most
from benchmarks.lib.memory import own_data_peak
from benchmarks.lib.workload import sample_lengths, write_split
from dstransformer.data import Shard, Split
from dstransformer.data.loader import PairReader, UpdateLoader
from dstransformer.data.plan import Budget, Position
from dstransformer.data.windows import BLOCK_PAIRS, EpochPlanner, Planner, WindowPlanner, build_planner, check_split

SMOKE_OPTIONS = "--pairs 10000000"

#: The corpus has this many shards, of which some differ, and windows.
SHARDS, DIFFERENT, WINDOWS = 1000, 4, 50

#: The small corpus is 1/100 of the large one, and so are its windows.
SCALE = 100
BUDGET = Budget(25_000, 25_000, 8)
SAMPLED_UPDATES = 2_000
ASSEMBLED_UPDATES = 50

Int64 = npt.NDArray[np.int64]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=1_000_000_000, help="of the large corpus; default: 10^9")


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure_cost(Path(folder), options.pairs)
    measure_shuffle(options.pairs)


def measure_cost(folder: Path, pairs: int) -> None:
    """Open the large corpus, and time its first updates."""
    linked = link_shards(folder, pairs // SHARDS)
    print(f"{pairs:,} pairs in {SHARDS:,} shards, windows of {pairs // WINDOWS:,}; CPU time in brackets")
    with own_data_peak() as peak:
        with Clock() as to_first:
            with Clock() as opening:
                split = Split(linked.folder, linked.info)
            check_split(split, BUDGET)
            loader = build_loader(split, pairs // WINDOWS)
            stream = loader.iter_updates(Position())
            next(stream)
        files = len(psutil.Process().open_files())
        stream.close()
    with own_data_peak() as planning, Clock() as twice:
        both = loader.plan(0, 0), loader.plan(0, 1)  # as when training goes from one to the next
    print_at_most("  time to the first update", to_first.seconds, 60.0, unit=" s")
    print(f"  {to_first}, of that opening: {opening}; files that stay open: {files}")
    print(f"  planning a window: {twice.seconds / 2:.2f} s ({twice.busy / 2:.2f} s), {both[0].updates:,} updates")
    print_at_most("  memory without mapped files", max(peak.bytes, planning.bytes) / 1e9, 4.0, unit=" GB")
    per_pair = planning.bytes / len(both[0].src_lengths)
    print(f"  memory of two windows, one of them being planned: {per_pair:.0f} bytes a pair")
    middle = both[0].updates // 2
    del both
    stream = build_loader(split, pairs // WINDOWS).iter_updates(Position(3, middle, 37))
    with Clock() as resuming:
        next(stream)
    print(f"  resuming at update {middle + 1:,} of window 38 of epoch 4: {resuming}")
    stream.close()
    window = loader.plan(0, 0)
    with Clock() as assembling:
        for number in range(assembled := min(ASSEMBLED_UPDATES, window.updates)):
            loader.assemble(window, Position(0, number), Position(0, number + 1))
    print(f"  assembling an update on one rank: {1e3 * assembling.busy / assembled:.1f} ms of CPU time")


class Clock:
    """The time of a block, and the CPU time of this process and its threads."""

    def __enter__(self) -> Clock:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began[0]
        self.busy = time.process_time() - self._began[1]

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.busy:.2f} s)"


def link_shards(folder: Path, shard_pairs: int) -> Split:
    """A corpus of links to a few shards."""
    info = write_split(folder / "few", DIFFERENT * shard_pairs, shard_rows=shard_pairs).info
    (folder / "train").mkdir()
    shards, times = [], SHARDS // DIFFERENT
    for number in range(SHARDS):
        shard, name = info.shards[number % DIFFERENT], f"data-{number:05d}.arrow"
        os.link(folder / "few" / shard.name, folder / "train" / name)
        shards.append(Shard(name=name, rows=shard.rows, sha256=shard.sha256))
    counts = {name: times * getattr(info, name) for name in ("pairs", "src_tokens", "tgt_tokens")}
    return Split(folder / "train", info.model_copy(update={**counts, "shards": tuple(shards)}))


def build_loader(split: Split, window_pairs: int) -> UpdateLoader:
    planner = build_planner(split, BUDGET, 1, None, window_pairs)
    return UpdateLoader(planner, PairReader(split), rank=0, world_size=1, prefetch=4, pin_memory=False)


class SampledSplit(Split):
    """The lengths of a split, without its tokens."""

    def __init__(self, pairs: int) -> None:
        self._sides = sample_lengths(pairs, seed=0)

    def __len__(self) -> int:
        return len(self._sides[0])

    def lengths(self, begins: Int64, ends: Int64) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """See :meth:`Split.lengths`."""
        ranges = list(map(slice, begins.tolist(), ends.tolist()))
        src, tgt = (np.concatenate([side[rows] for rows in ranges]) for side in self._sides)
        return src, tgt


@dataclass(frozen=True)
class Epoch:
    """The pairs of an epoch in the order of training, and where its updates begin."""

    pairs: Int64
    starts: Int64
    tokens: Int64

    @classmethod
    def of(cls, planner: Planner, number: int) -> Epoch:
        """Plan an epoch."""
        pairs, sizes, tokens = [], [], []
        for window in (planner.plan(number, part) for part in range(planner.windows(number))):
            order, starts = window.plan.order, window.plan.bounds[:-1]
            pairs.append(window.pairs(order.astype(np.int64)))
            sizes.append(np.diff(window.plan.bounds))
            sides = (side[order].astype(np.int64) for side in (window.src_lengths, window.tgt_lengths))
            tokens.append(np.maximum(*(np.add.reduceat(side, starts) for side in sides)))
        ends = np.cumsum(np.concatenate(sizes))
        return cls(np.concatenate(pairs), np.concatenate(([0], ends[:-1])), np.concatenate(tokens))

    @property
    def update_of(self) -> Int64:
        """The update of each pair of the corpus."""
        update = np.empty(len(self.pairs), dtype=np.int64)
        update[self.pairs] = np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=len(self.pairs)))
        return update


def measure_shuffle(large: int) -> None:
    """Compare the orders of whole epochs, of windows, and of windows of whole shards."""
    pairs, window, shard = large // SCALE, large // WINDOWS // SCALE, large // SHARDS // SCALE
    split = SampledSplit(pairs)
    print(f"{pairs:,} pairs, windows of {window:,}; in brackets what corresponds to it in the large corpus")
    show_shuffle("whole epochs", EpochPlanner(split, BUDGET, 1, None), shard)
    for name, size in (
        (f"blocks of {BLOCK_PAIRS:,} pairs", BLOCK_PAIRS),
        (f"blocks of {BLOCK_PAIRS // SCALE:,} ({BLOCK_PAIRS:,})", BLOCK_PAIRS // SCALE),
        (f"whole shards of {shard:,} ({SCALE * shard:,})", shard),
    ):
        show_shuffle(f"windows of {name}", WindowPlanner(split, BUDGET, 1, None, window, size), shard)


def show_shuffle(name: str, planner: Planner, shard_pairs: int) -> None:
    """Print how an epoch mixes its corpus, and how full its updates are."""
    first, second = Epoch.of(planner, 0), Epoch.of(planner, 1)
    count, pairs = len(first.starts), len(first.pairs)
    sizes = np.diff(first.starts, append=pairs)
    means = np.add.reduceat(first.pairs / pairs, first.starts) / sizes
    spread = float(means.std() / np.sqrt((1 / 12 / sizes).mean()))
    chosen = np.random.default_rng(0).choice(count, min(SAMPLED_UPDATES, count), replace=False)
    updates = [first.pairs[first.starts[number] :][: sizes[number]] for number in chosen]
    together = second.update_of
    meetings = sum(coincidences(together[update]) for update in updates)
    shards = sum(coincidences(update // shard_pairs) for update in updates)
    chances = sum(len(update) * (len(update) - 1) / 2 for update in updates)
    print(f"{name}")
    print(f"  {count:,} updates of {pairs / count:.2f} pairs, {first.tokens.mean() / BUDGET.src_tokens:.2%} full")
    print(f"  spread of the updates' mean place in the corpus, random samples 1: {spread:.3f}")
    print(f"  pairs of an update from one shard, chance 1: {shards / chances * SHARDS:.3f}")
    print(f"  pairs of an update that meet again in the next epoch, chance 1: {meetings / chances * count:.3f}")


def coincidences(values: Int64) -> int:
    """In how many ways two of them are equal."""
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())
