"""``dst train --find-batch``: the largest update that fits the memory of every process, by trial.

Each rank starts a child that computes larger and larger updates (:mod:`dstransformer.training.batch_trial`). Where one
does not fit on some rank, all children end, and the next ones stay below it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from dstransformer.distributed.launcher import Processes, check_launch
from dstransformer.distributed.world import World, free_port, join_world, leave_world
from dstransformer.errors import ConfigError, DstError, shown
from dstransformer.io.command import stopped_by_signals
from dstransformer.training.batch_trial import CLOSE, Sizes, write_task
from dstransformer.training.estimate import estimate, plan_warnings
from dstransformer.training.micro_batches import choose_micro_batches
from dstransformer.training.setup import (
    GIB,
    Setup,
    TrainRequest,
    check_corpus,
    find_resume_checkpoint,
    resolve_setup,
)

logger = logging.getLogger(__name__)

#: The share of a size that did not fit at which the next trial ends.
_STEP_DOWN = 0.9

_POLL_SECONDS = 0.2

_PEER_SECONDS = 5.0  # in which a child notices that another one has ended

_MAIN = "from dstransformer.training.batch_trial import run_trials; run_trials({parent})"

#: Signals by which a process ends that has no memory left: the kernel's, and that of C++ code.
_MEMORY_SIGNALS = (-signal.SIGKILL, -signal.SIGABRT)


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

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return asdict(self)

    @property
    def overrides(self) -> str:
        """What gives it to a run."""
        return (
            f"--set batch.src_tokens={self.src_tokens} batch.tgt_tokens={self.tgt_tokens} "
            f"batch.micro_batches={self.micro_batches}"
        )


@dataclass
class _Trial:
    """What a child has told, or those of all ranks together.

    Attributes:
        end: How it ended: ``done``, ``memory``, ``peer`` (another child did) or ``error``; empty while it runs.
        message: Why.
        user: Whether the error is one that a user can fix.
        fits: The largest size that fits, and the bytes that it takes; None if no size does.
        trying: The last size that was tried; 0 if the model was not built.
        device: ``cpu`` or ``cuda``.
        usable: Bytes that each process may take.
    """

    end: str = ""
    message: str = ""
    user: bool = False
    fits: tuple[int, int] | None = None
    trying: int = 0
    device: str = "cpu"
    usable: int = 0

    def add(self, line: str) -> None:
        """Add a line that the child has printed."""
        told = json.loads(line)
        if "fits" in told:
            self.fits = told["fits"], told["peak"]
        else:
            for name, value in told.items():
                setattr(self, name, value)


def find_batch(request: TrainRequest) -> FoundBatch:
    """Find the largest update that fits every process, in one micro-batch on each. Nothing is written.

    An update counts as fitting if its memory stays within 90% of what its device, or its share of the machine, has
    left. The two sides keep the ratio that the configuration gives them.

    Args:
        request: The options of a new run.

    Raises:
        UserError: The request is wrong, the run folder holds a run, or nothing fits.
        DstError: A trial failed for another reason than memory.
    """
    processes = check_launch(os.environ)
    request = replace(request, overrides=[*request.overrides, "batch.micro_batches=auto"], resume="never")
    resolved = _resolve(request, processes)
    # The children use the devices; this process only watches.
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    world = join_world(processes, environment)
    world.raise_any(resolved if isinstance(resolved, Exception) else None)
    assert isinstance(resolved, Setup)
    with stopped_by_signals():
        trial = _search(request, Sizes.of(resolved), world, environment)
    found = _describe(resolved, trial)
    leave_world()
    return found


def _resolve(request: TrainRequest, processes: Processes) -> Setup | Exception:
    """Resolve and check the request, or return the error, so that every rank raises it."""
    try:
        setup = choose_micro_batches(resolve_setup(request, processes), None, None)
        check_corpus(setup, verify=False)
        if processes.rank == 0:
            find_resume_checkpoint(request, setup)
        return setup
    except Exception as error:
        if processes.world_size == 1:
            raise
        return error


def _search(request: TrainRequest, sizes: Sizes, world: World, environment: Mapping[str, str]) -> _Trial:
    """Start trials, each below what did not fit before, until one ends without running out of memory."""
    best, limit = None, None
    while True:
        trial = _try_sizes(request, limit, world, environment)
        best = max(filter(None, (best, trial.fits)), default=None)
        if trial.end == "done":
            break
        if trial.end != "memory":
            raise (ConfigError if trial.user else DstError)(trial.message or "a trial lost its peers: try again")
        limit = sizes.round_down(_STEP_DOWN * trial.trying)
        if limit >= trial.trying or (best is not None and limit <= (1 + CLOSE) * best[0]):
            break
        if world.is_rank0:
            logger.warning("memory ran out with %s: trying less", _tokens(sizes, trial.trying))
    if best is None:
        raise ConfigError(
            f"no update fits: with {_tokens(sizes, sizes.smallest)}, the least for the longest sentences of the "
            f"corpus, it takes more than the {trial.usable / GIB:,.2f} GiB that each may use: choose a higher ZeRO "
            "stage, a smaller model or fewer processes on a machine"
        )
    return replace(trial, fits=best)


def _try_sizes(request: TrainRequest, limit: int | None, world: World, environment: Mapping[str, str]) -> _Trial:
    """Run a child on every rank to its end, and combine what they told. Collective."""
    port = world.compute_on_rank0(free_port)
    with tempfile.TemporaryDirectory(prefix="dst-find-batch-") as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        with outputs[0].open("w") as output, outputs[1].open("w") as errors:
            child = _start_child(write_task(request, limit), {**environment, "MASTER_PORT": str(port)}, output, errors)
        try:
            trial = _watch(child, outputs[0], world)
        finally:
            child.kill()
            child.wait()
        if not trial.end:
            trial.end, trial.message = _explain(child.returncode, outputs[1])
    trials: list[_Trial] = world.gather(trial)
    worst = next((told for end in ("error", "memory", "peer") for told in trials if told.end == end), trials[0])
    sizes = [told.fits for told in trials if told.fits is not None]
    return replace(worst, fits=min(sizes) if len(sizes) == len(trials) else None, usable=trials[0].usable)


def _start_child(task: str, environment: Mapping[str, str], output: IO[str], errors: IO[str]) -> subprocess.Popen[str]:
    """Start a child. Rank 0's child has the store in which they meet."""
    variables = {**environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    variables.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    if "DS_ACCELERATOR" in os.environ:
        variables["DS_ACCELERATOR"] = os.environ["DS_ACCELERATOR"]
    else:
        del variables["DS_ACCELERATOR"]
    child = subprocess.Popen(
        [sys.executable, "-c", _MAIN.format(parent=os.getpid())],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        text=True,
    )
    assert child.stdin is not None
    with child.stdin as pipe:
        pipe.write(task)
    return child


def _watch(child: subprocess.Popen[str], output: Path, world: World) -> _Trial:
    """Read what a child tells until all have ended. If one fails, those that wait for it are ended."""
    trial = _Trial()
    with output.open() as lines:
        while True:
            has_ended = child.poll() is not None
            for line in lines:
                trial.add(line)
            failed, running = world.any(has_ended and trial.end != "done", not has_ended)
            if failed and not has_ended:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_PEER_SECONDS)
                if child.poll() is None:
                    trial.end = "peer"
                return trial
            if failed or not running:
                return trial
            time.sleep(_POLL_SECONDS)


def _explain(status: int, errors: Path) -> tuple[str, str]:
    """How a child ended that did not say it."""
    if status in _MEMORY_SIGNALS:
        return "memory", f"a trial was ended by {signal.Signals(-status).name}"
    lines = errors.read_text(errors="replace").strip().splitlines()
    return "error", f"a trial failed: {shown(lines[-1] if lines else f'exit status {status}', quote=False, limit=300)}"


def _describe(setup: Setup, trial: _Trial) -> FoundBatch:
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


def _tokens(sizes: Sizes, size: int) -> str:
    return "{:,} source and {:,} target tokens on each process".format(*sizes.tokens(size))
