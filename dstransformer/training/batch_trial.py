"""The child process of ``--find-batch``: computes larger and larger updates, and prints what each has taken.

Each rank has one. An update that does not fit ends the child, so the next trial starts with clean memory. A child needs
no launcher: its rank is that of its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dstransformer.data.batch import pack_pairs
from dstransformer.data.loader import Position, Update
from dstransformer.data.plan import Lengths, LengthSums
from dstransformer.decoding.devices import is_memory_error
from dstransformer.distributed.launcher import Processes, read_processes
from dstransformer.distributed.world import World, join_world
from dstransformer.errors import DstError, PeerError
from dstransformer.evaluation.task import Task
from dstransformer.evaluation.validation import Validator
from dstransformer.training.available_memory import (
    limit_own_memory,
    own_memory_left,
    shared_memory_left,
    status,
)
from dstransformer.training.engine import Engine
from dstransformer.training.estimate import tokens_peak_bytes
from dstransformer.training.micro_batches import SHARE, choose_micro_batches, usable_bytes
from dstransformer.training.precision import settle_precision
from dstransformer.training.setup import Setup, TrainRequest, resolve_setup

#: Sizes closer than this share of each other are the same.
CLOSE = 0.05

#: Updates at most until one is applied: fp16 skips the first ones until its loss scale is low enough.
_FIRST_UPDATES = 20

_GROUP = 64  # larger sizes are multiples of it


@dataclass(frozen=True)
class Sizes:
    """The sizes of an update, in tokens of its larger side on each process. The sides keep their ratio.

    Attributes:
        src_share: Source tokens per token of that.
        tgt_share: Target tokens per token of that; one of the two is 1.
        longest: Tokens of the longest source and target sentence, with their ends.
        smallest: The size at which an update has room for them, in every stage of ``batch.stages``.
        largest: The size at which an update holds the training split.
    """

    src_share: float
    tgt_share: float
    longest: tuple[int, int]
    smallest: int
    largest: int

    @classmethod
    def of(cls, setup: Setup) -> Sizes:
        """The sizes of an experiment."""
        batch, train = setup.config.batch, setup.corpus.manifest.splits["train"]
        larger = max(batch.src_tokens, batch.tgt_tokens)
        shares = batch.src_tokens / larger, batch.tgt_tokens / larger
        longest = train.src_lengths.max + 1, train.tgt_lengths.max + 1
        whole = (train.src_tokens + train.pairs, train.tgt_tokens + train.pairs)
        least = batch.smallest_share
        smallest = max(-(-tokens // (share * least)) for tokens, share in zip(longest, shares, strict=True))
        every = max(-(-tokens // (share * setup.world_size)) for tokens, share in zip(whole, shares, strict=True))
        return cls(*shares, longest, int(smallest), int(max(smallest, every)))

    def tokens(self, size: int) -> tuple[int, int]:
        """Source and target tokens of each process."""
        return round(size * self.src_share), round(size * self.tgt_share)

    def round_down(self, size: float) -> int:
        """A round size within the bounds."""
        rounded = int(size) // _GROUP * _GROUP if size >= 10 * _GROUP else int(size)
        return min(max(rounded, self.smallest), self.largest)


def grow(measure: Callable[[int], int], usable: int, sizes: Sizes, guess: int | None = None) -> Iterator[int]:
    """Measure larger and larger sizes, and yield those that fit.

    The next size is the guess, if there is one; then where the line through the last two measurements meets the limit,
    or twice the last size, whichever is less. The peak is a maximum of lines, so it may be beyond.

    Args:
        measure: The peak memory of an update of this size, in bytes.
        usable: Bytes that it may take.
        sizes: The bounds.
        guess: The largest size that fits by prediction.
    """
    before, size = (0, 0), sizes.smallest
    while (peak := measure(size)) <= usable:
        yield size
        slope = (peak - before[1]) / (size - before[0])
        room = size + (usable - peak) / slope if slope > 0 else 2 * size
        following = sizes.round_down(guess or min(room, 2 * size))
        before, size, guess = (size, peak), following, None
        if size <= before[0] or (size < (1 + CLOSE) * before[0] and size != sizes.largest):
            return


class Trial:
    """Computes updates of the worst shape: both sides are full, and every sentence is as long as the longest.

    Args:
        setup: The experiment, with one micro-batch for each process.
        world: The process group of the children.
    """

    def __init__(self, setup: Setup, world: World) -> None:
        self._world, self._setup, self._sizes = world, setup, Sizes.of(setup)
        self._before = 0 if world.device.type == "cuda" else status("VmRSS")
        self.usable = min(world.gather(self._measure_usable()))
        self._held: list[Any] = []
        self._number = 0

    def _measure_usable(self) -> int:
        """Bytes that this process may take."""
        world = self._world
        nodes = world.gather(platform.node())
        left: int = min(world.gather(shared_memory_left())) // nodes.count(platform.node())  # all have started by now
        if world.device.type == "cuda":
            free = round(SHARE * torch.cuda.mem_get_info(world.device)[0])
            return min(free, usable_bytes(world.device) or free)
        left = min(left, left if (own := own_memory_left()) is None else own)
        limit_own_memory(left)
        return round(SHARE * left)

    def start(self) -> None:
        """Build what a run holds: the engine with its moments, the model of validation, a copy for a checkpoint."""
        setup, tokenizer = self._setup, self._setup.corpus.tokenizer
        src_rows = tokenizer.src.vocab_size
        self._engine = Engine(setup.config, setup.ds_config, tokenizer.vocab_size, self._world, src_vocab_size=src_rows)
        task = Task.build(setup.corpus.manifest, setup.config.validation)
        validator = Validator(setup.config, tokenizer, self._world, setup.precision, task)
        for _ in range(_FIRST_UPDATES):
            if not self._step(self._sizes.smallest):
                break
        validator.load(self._engine.iter_weights())
        self._held = [validator, self._engine.snapshot()]

    def measure(self, size: int) -> int:
        """The most bytes that any rank has taken so far, after an update of this size. Collective."""
        self._step(size)
        device = self._world.device
        on_gpu = device.type == "cuda"
        taken = torch.cuda.max_memory_allocated(device) if on_gpu else status("VmHWM") - self._before
        return int(max(self._world.gather(taken)))

    def _step(self, size: int) -> bool:
        """Compute an update. Returns whether it was skipped."""
        self._number += 1
        update = worst_update(self._sizes.tokens(size), self._sizes.longest, self._world.world_size)
        return self._engine.step(update, self._number).skipped

    def predict(self) -> int | None:
        """The largest size that fits this GPU by the formula for its memory; None where it does not hold."""

        def peak(size: int) -> int | None:
            return tokens_peak_bytes(
                self._setup, *(tokens * self._world.world_size for tokens in self._sizes.tokens(size))
            )

        low, high = self._sizes.smallest, self._sizes.largest + 1
        if not usable_bytes(self._world.device) or peak(low) is None:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if (peak(middle) or 0) <= self.usable else (low, middle)
        return low


def worst_update(tokens: tuple[int, int], longest: tuple[int, int], world_size: int) -> Update:
    """A rank's share of an update: one micro-batch with so many tokens on each side, and one pair more.

    Cutting an update into micro-batches may give one of them a pair more than its share.

    Args:
        tokens: Source and target tokens of the rank.
        longest: Tokens of the longest source and target sentence, with their ends.
        world_size: Number of processes.
    """
    pairs = max(-(-side // length) for side, length in zip(tokens, longest, strict=True)) + 1
    src, tgt = (_share(side + length, pairs) for side, length in zip(tokens, longest, strict=True))
    batch = pack_pairs(_ids(src), src - 1, _ids(tgt), tgt - 1)
    sums = LengthSums.of(np.tile(src, world_size), np.tile(tgt, world_size))
    return Update(Position(), Position(), [batch], sums)


def _share(tokens: int, pairs: int) -> Lengths:
    """Lengths that add up to so many tokens, as even as possible; none is 0."""
    lengths = np.full(pairs, tokens // pairs, dtype=np.int32)
    lengths[: tokens % pairs] += 1
    return np.maximum(lengths, 1)


def _ids(lengths: Lengths) -> Lengths:
    """Tokens for sentences of these lengths, their ends left out."""
    return np.full(int(lengths.sum()) - len(lengths), 4, dtype=np.int32)


def read_task(text: str) -> tuple[TrainRequest, int | None]:
    """The request, and the size that all trials must be below, from what the parent writes."""
    task = json.loads(text)
    corpus, run = Path(task["corpus"]), Path(task["run"])
    request = TrainRequest(task["preset"], corpus, run, overrides=task["overrides"], fragments=task["fragments"])
    return request, task["limit"]


def write_task(request: TrainRequest, limit: int | None) -> str:
    """What :func:`read_task` reads."""
    task = {"preset": request.preset, "corpus": str(request.corpus.absolute()), "run": str(request.run.absolute())}
    return json.dumps({**task, "overrides": [*request.overrides], "fragments": [*request.fragments], "limit": limit})


def run_trials(parent: int) -> None:
    """The main function of the child. Prints a line for the usable memory, for each size that fits, and the end.

    Args:
        parent: The process that started it, with which it ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        return
    printed = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # DeepSpeed prints to stdout

    def tell(**fields: object) -> None:
        print(json.dumps(fields), file=printed)

    request, limit = read_task(sys.stdin.read())
    processes = read_processes(os.environ)
    try:
        _run(request, limit, processes, tell)
    except PeerError:
        tell(end="peer")
    except DstError as error:
        tell(end="error", message=str(error), user=error.exit_code == 2)
    except (MemoryError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        tell(end="memory")
    printed.flush()
    os._exit(0)  # the others may be gone: leaving the process group would wait for them


def _run(request: TrainRequest, limit: int | None, processes: Processes, tell: Callable[..., None]) -> None:
    world = join_world(processes)
    setup = choose_micro_batches(settle_precision(resolve_setup(request, processes), "never", world), None, None)
    trial = Trial(setup, world)
    tell(usable=trial.usable, device=world.device.type)
    trial.start()
    sizes, peaks, guess = Sizes.of(setup), dict[int, int](), limit or trial.predict()
    if limit is not None:
        sizes = replace(sizes, largest=limit)

    def measure(size: int) -> int:
        tell(trying=size)
        peaks[size] = trial.measure(size)
        return peaks[size]

    for size in grow(measure, trial.usable, sizes, guess):
        tell(fits=size, peak=peaks[size])
    tell(end="done")
