"""``dst train --find-batch``: the largest update that fits the memory of every process, by trial.

Each rank starts a child, which needs no launcher and computes larger and larger updates. Where one does not fit on some
rank, all children end, so that the next ones start with clean memory and stay below it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from dstransformer.data.loader import Update
from dstransformer.data.packing import pack_pairs
from dstransformer.data.plan import Lengths, LengthSums, Position
from dstransformer.decoding.devices import is_memory_error
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World, free_port, join_world, leave_world, raise_on_all
from dstransformer.errors import ConfigError, DstError, PeerError, shown
from dstransformer.evaluation.validation import Validator
from dstransformer.io.command import stopped_by_signals
from dstransformer.training.automatic import SHARE, Devices, choose, usable_bytes
from dstransformer.training.engine import Engine
from dstransformer.training.estimate import estimate, plan_warnings, tokens_peak_bytes
from dstransformer.training.setup import (
    GIB,
    Setup,
    TrainRequest,
    check_corpus,
    find_resume_point,
    resolve_setup,
)

logger = logging.getLogger(__name__)

#: Sizes closer than this share of each other are the same.
CLOSE = 0.05

#: Updates at most until one is applied: fp16 skips the first ones until its loss scale is low enough.
_FIRST_UPDATES = 20

_GROUP = 64  # larger sizes are multiples of it

#: The share of a size that did not fit at which the next trial ends.
_STEP_DOWN = 0.9

_POLL_SECONDS = 0.2

_PEER_SECONDS = 5.0  # in which a child notices that another one has ended

#: How a child may end, worst first: with an error that a user can fix, another error, without memory, because another
#: one has ended, well.
_ENDS = ("refused", "error", "memory", "peer", "done")


@dataclass(frozen=True)
class FoundBatch:
    """The largest update that fits.

    Attributes:
        src_tokens: Its ``batch.src_tokens``.
        tgt_tokens: Its ``batch.tgt_tokens``.
        micro_batches: Its ``batch.micro_batches``, one for each process.
        configured: The ``batch.micro_batches`` at which an update of the configured size fits.
        device: ``cpu`` or ``cuda``.
        peak_gib: The most memory that it has taken on a process, in GiB.
        usable_gib: What each process may take.
        holds_all: Whether the update holds the whole training split, so that no larger one exists.
        warnings: What is probably a mistake in a run with such updates.
    """

    src_tokens: int
    tgt_tokens: int
    micro_batches: int
    configured: int
    device: str
    peak_gib: float
    usable_gib: float
    holds_all: bool
    warnings: Sequence[str]

    @property
    def overrides(self) -> str:
        """What gives it to a run."""
        return (
            f"--set batch.src_tokens={self.src_tokens} batch.tgt_tokens={self.tgt_tokens} "
            f"batch.micro_batches={self.micro_batches}"
        )


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

    def describe(self, size: int) -> str:
        """A size as text."""
        return "{:,} source and {:,} target tokens on each process".format(*self.tokens(size))

    def round_down(self, size: float) -> int:
        """A round size within the bounds."""
        rounded = int(size) // _GROUP * _GROUP if size >= 10 * _GROUP else int(size)
        return min(max(rounded, self.smallest), self.largest)


@dataclass
class _Told:
    """What a child has told, or those of all ranks together.

    Attributes:
        end: How it ended, see :data:`_ENDS`; empty while it runs.
        message: Why.
        fits: The largest size that fits, and the bytes that it takes; None if no size does.
        trying: The last size that was tried; 0 if the model was not built.
        device: ``cpu`` or ``cuda``.
        usable: Bytes that each process may take.
    """

    end: str = ""
    message: str = ""
    fits: list[int] | None = None
    trying: int = 0
    device: str = "cpu"
    usable: int = 0


def find_batch(request: TrainRequest, setup: Setup) -> FoundBatch:
    """Find the largest update that fits every process, in one micro-batch on each. Nothing is written.

    An update counts as fitting if its memory stays within 90% of what its device, or its share of the machine, has
    left. The two sides keep the ratio that the configuration gives them.

    Args:
        request: The options of a new run, with ``batch.micro_batches=auto``.
        setup: What :func:`dstransformer.training.setup.resolve_on_all` makes of them.

    Raises:
        UserError: The request is wrong, the run folder holds a run, or nothing fits.
        DstError: A trial failed for another reason than memory.
    """
    processes = read_processes(os.environ)
    # The children use the devices; this process only watches.
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    try:
        setup = choose(setup, None, Devices(frozenset(), None))
        check_corpus(setup, verify=False)
        if processes.rank == 0:
            find_resume_point(request, setup)
    except Exception as error:
        raise_on_all(error, processes, environment)
    world = join_world(processes, environment)
    world.raise_any(None)
    with stopped_by_signals():
        trial = _search(request, Sizes.of(setup), world, environment)
    leave_world()
    return _describe(setup, trial)


def _search(request: TrainRequest, sizes: Sizes, world: World, environment: Mapping[str, str]) -> _Told:
    """Start trials, each below what did not fit before, until one ends without running out of memory."""
    best: list[int] | None = None
    limit: int | None = None
    while True:
        trial = _try_sizes(request, limit, world, environment)
        best = max(filter(None, (best, trial.fits)), default=None)
        if trial.end == "done":
            break
        if trial.end != "memory":
            kind = ConfigError if trial.end == "refused" else DstError
            raise kind(trial.message or "a trial lost its peers: try again")
        limit = sizes.round_down(_STEP_DOWN * trial.trying)
        if limit >= trial.trying or (best is not None and limit <= (1 + CLOSE) * best[0]):
            break
        if world.is_rank0:
            logger.warning("memory ran out with %s: trying less", sizes.describe(trial.trying))
    if best is None:
        raise ConfigError(
            f"no update fits: with {sizes.describe(sizes.smallest)}, the least for the longest sentences of the "
            f"corpus, it takes more than the {trial.usable / GIB:,.2f} GiB that each may use: choose a higher ZeRO "
            "stage, a smaller model or fewer processes on a machine"
        )
    return replace(trial, fits=best)


def _try_sizes(request: TrainRequest, limit: int | None, world: World, environment: Mapping[str, str]) -> _Told:
    """Run a child on every rank to its end, and combine what they told. Rank 0's has the store in which they meet."""
    port = world.compute_on_rank0(free_port)
    own = {**environment, "MASTER_PORT": str(port), "PYTHONPATH": os.pathsep.join(sys.path)}
    for name in own.keys() & {"DS_ACCELERATOR", "TORCHELASTIC_USE_AGENT_STORE"}:
        del own[name]
    own |= {name: value for name, value in os.environ.items() if name == "DS_ACCELERATOR"}
    task = json.dumps([asdict(request), limit, os.getpid()], default=str)
    with tempfile.TemporaryDirectory(prefix="dst-find-batch-") as folder:
        told, errors = Path(folder, "stdout"), Path(folder, "stderr")
        with told.open("w") as output, errors.open("w") as error:
            command = [sys.executable, "-c", f"from {__name__} import run_trials; run_trials()"]
            child = subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=output, stderr=error, text=True)
        try:
            with suppress(BrokenPipeError), child.stdin as pipe:  # type: ignore[union-attr]
                pipe.write(task)
            trial = _watch(child, told, world)
        finally:
            child.kill()
            child.wait()
        if not trial.end:
            trial.end, trial.message = _explain(child.returncode, errors)
    trials: list[_Told] = world.gather(trial)
    worst = min(trials, key=lambda trial: _ENDS.index(trial.end))
    fits = [trial.fits for trial in trials if trial.fits is not None]
    return replace(worst, fits=min(fits) if len(fits) == len(trials) else None, usable=trials[0].usable)


def _watch(child: subprocess.Popen[str], told: Path, world: World) -> _Told:
    """Read what a child tells until all have ended. If one fails, those that wait for it are ended."""
    trial = _Told()
    with told.open() as lines:
        while True:
            has_ended = child.poll() is not None
            for line in lines:
                vars(trial).update(json.loads(line))
            failed, running = world.any(has_ended and trial.end != "done", not has_ended)
            if failed or not running:
                break
            time.sleep(_POLL_SECONDS)
        try:
            child.wait(_PEER_SECONDS)
            for line in lines:
                vars(trial).update(json.loads(line))
        except subprocess.TimeoutExpired:
            trial.end = "peer"
    return trial


def _explain(status: int, errors: Path) -> tuple[str, str]:
    """How a child ended that did not say it."""
    if status in (-signal.SIGKILL, -signal.SIGABRT):  # those of the kernel and of C++ code without memory
        return "memory", f"a trial was ended by {signal.Signals(-status).name}"
    lines = errors.read_text(errors="replace").strip().splitlines()
    return "error", f"a trial failed: {shown(lines[-1] if lines else f'exit status {status}', quote=False, limit=300)}"


def _describe(setup: Setup, trial: _Told) -> FoundBatch:
    """The update of a size, for all processes together."""
    assert trial.fits is not None
    (size, peak), sizes, batch = trial.fits, Sizes.of(setup), setup.config.batch
    src_tokens, tgt_tokens = (tokens * setup.world_size for tokens in sizes.tokens(size))
    found = batch.model_copy(update={"src_tokens": src_tokens, "tgt_tokens": tgt_tokens})
    config = setup.config.model_copy(update={"batch": found})
    estimated = estimate(replace(setup, config=config))
    times = max(-(-batch.src_tokens // src_tokens), -(-batch.tgt_tokens // tgt_tokens))
    return FoundBatch(
        src_tokens=src_tokens,
        tgt_tokens=tgt_tokens,
        micro_batches=setup.world_size,
        configured=times * setup.world_size,
        device=trial.device,
        peak_gib=peak / GIB,
        usable_gib=trial.usable / GIB,
        holds_all=size == sizes.largest,
        warnings=plan_warnings(config, estimated.updates_per_epoch, estimated.stage_updates),
    )


def run_trials() -> None:
    """The main function of a child, which ends with its parent. Prints the values of a :class:`_Told`."""
    options, limit, parent = json.loads(sys.stdin.read())
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        return
    printed = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # for DeepSpeed, which prints to it

    def tell(**fields: object) -> None:
        print(json.dumps(fields), file=printed)

    try:
        _run(TrainRequest(**options), limit, tell)
    except PeerError:
        tell(end="peer")
    except DstError as error:
        tell(end="refused" if error.exit_code == 2 else "error", message=str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        tell(end="memory")
    os._exit(0)  # the others may be gone: leaving the process group would wait for them


def _run(request: TrainRequest, limit: int | None, tell: Callable[..., None]) -> None:
    processes = read_processes(os.environ)
    world = join_world(processes)
    setup = choose(resolve_setup(request, processes), None, Devices.gather(world)._replace(usable=None))
    trial, sizes, peaks = Trial(setup, world), Sizes.of(setup), dict[int, int]()
    tell(usable=trial.usable, device=world.device.type)
    trial.start()
    guess = limit or trial.predict()
    sizes = replace(sizes, largest=limit or sizes.largest)

    def measure(size: int) -> int:
        tell(trying=size)
        peaks[size] = trial.measure(size)
        return peaks[size]

    for size in grow(measure, trial.usable, sizes, guess):
        tell(fits=(size, peaks[size]))
    tell(end="done")


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
        self._before = psutil.Process().memory_info().rss
        self.usable = min(world.gather(self._measure_usable()))
        self._held: list[Any] = []
        self._number = 0

    def _measure_usable(self) -> int:
        """Bytes that this process may take."""
        world = self._world
        nodes = world.gather(platform.node())
        groups = left_in_cgroups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
        shared = world.gather(min([psutil.virtual_memory().available, *groups]))  # all have started by now
        left: int = min(shared) // nodes.count(platform.node())
        if world.device.type == "cuda":
            free = round(SHARE * torch.cuda.mem_get_info(world.device)[0])
            return min(free, usable_bytes(world.device) or free)
        return round(SHARE * limit_own_memory(left))

    def start(self) -> None:
        """Build what a run holds: the engine with its moments, the model of validation, a copy for a checkpoint."""
        setup, tokenizer = self._setup, self._setup.corpus.tokenizer
        src_rows = tokenizer.src.vocab_size
        self._engine = Engine(setup.config, setup.ds_config, tokenizer.vocab_size, self._world, src_vocab_size=src_rows)
        validator = Validator(setup.config, tokenizer, Session(self._world), setup.precision, setup.task)
        for _ in range(_FIRST_UPDATES):
            if not self._step(self._sizes.smallest):
                break
        validator.load(self._engine.iter_weights())
        self._held = [validator, self._engine.snapshot()]

    def measure(self, size: int) -> int:
        """The most bytes that any rank has taken so far, after an update of this size. Collective."""
        self._step(size)
        if self._world.device.type == "cuda":
            taken = torch.cuda.max_memory_allocated(self._world.device)
        else:
            taken = peak_memory() - self._before
        return int(max(self._world.gather(taken)))

    def _step(self, size: int) -> bool:
        """Compute an update. Returns whether it was skipped."""
        self._number += 1
        update = worst_update(self._sizes.tokens(size), self._sizes.longest, self._world.world_size)
        return self._engine.step(update, self._number).skipped

    def predict(self) -> int | None:
        """The largest size that fits this GPU by the formula for its memory; None where it does not hold."""

        def peak(size: int) -> int | None:
            tokens = (count * self._world.world_size for count in self._sizes.tokens(size))
            return tokens_peak_bytes(self._setup, *tokens)

        sizes = range(self._sizes.smallest, self._sizes.largest + 1)
        if not usable_bytes(self._world.device) or peak(sizes[0]) is None:
            return None
        return sizes[max(1, bisect_right(sizes, self.usable, key=lambda size: peak(size) or 0)) - 1]


def worst_update(tokens: tuple[int, int], longest: tuple[int, int], world_size: int) -> Update:
    """A rank's share of an update: one micro-batch with so many tokens on each side, and one pair more.

    Cutting an update into micro-batches may give one of them a pair more than its share.
    """
    pairs = max(-(-side // length) for side, length in zip(tokens, longest, strict=True)) + 1
    src, tgt = (_divide(side + length, pairs) for side, length in zip(tokens, longest, strict=True))
    batch = pack_pairs(_ids(src), src - 1, _ids(tgt), tgt - 1)
    sums = LengthSums.of(np.tile(src, world_size), np.tile(tgt, world_size))
    return Update(Position(), Position(), [batch], sums)


def _divide(tokens: int, pairs: int) -> Lengths:
    """Lengths that add up to so many tokens, as even as possible; none is 0."""
    return np.maximum(np.diff(np.arange(pairs + 1) * tokens // pairs), 1).astype(np.int32)


def _ids(lengths: Lengths) -> Lengths:
    """Tokens for sentences of these lengths, their ends left out."""
    return np.full(int(lengths.sum()) - len(lengths), 4, dtype=np.int32)


def left_in_cgroups(membership: Path, root: Path) -> Iterator[int]:
    """What the limits of this process's control group, and of those around it, leave; files that may go count as free.

    The formats are those of the kernel's page on control groups, version 2. ``membership`` is the file that names the
    group, ``root`` where groups are.
    """
    name = ""
    with suppress(OSError):
        lines = membership.read_text().splitlines()
        name = next((line[4:] for line in lines if line.startswith("0::/")), "")
    for group in (root / name, *(root / name).parents):
        with suppress(OSError, ValueError):  # no limit ("max"), or outside of the groups
            limit = int((group / "memory.max").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used = int((group / "memory.current").read_text()) - int(statistics["inactive_file"])
            yield max(0, limit - used)
        if group == root:
            return


def peak_memory() -> int:
    """The most bytes of memory that this process has held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def limit_own_memory(left: int) -> int:
    """Let an allocation beyond so many bytes more raise an error. Otherwise the kernel would end some process.

    Returns what this process may still take, by its own limits (``ulimit -v``, ``-d``) too.
    """
    taken = psutil.Process().memory_info()
    for kind, size in ((resource.RLIMIT_AS, taken.vms), (resource.RLIMIT_DATA, taken.data)):
        if (limit := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY:
            left = max(0, min(left, limit - size))
    resource.setrlimit(resource.RLIMIT_DATA, (taken.data + left, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    return left
