"""A training run, from the first check to the final bundle; and the dry run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstransformer.checkpoints.format import Checkpoint, Cost, read_checkpoint
from dstransformer.checkpoints.resume import find_checkpoint, warn_if_hardware_differs, warn_if_layout_differs
from dstransformer.checkpoints.retention import CheckpointFolder
from dstransformer.config import load_config
from dstransformer.distributed.launcher import Processes, check_environment, read_processes, single_process_warning
from dstransformer.distributed.supervision.exit_status import record_exit_status, status_of
from dstransformer.distributed.supervision.failure_detection import Limits
from dstransformer.distributed.supervision.heartbeat import STATUS, Watchdog, prepare_folder
from dstransformer.distributed.supervision.orphans import stopping_with_launcher
from dstransformer.distributed.supervision.rank_log import RankLog, record_collectives
from dstransformer.distributed.supervision.run_lock import lock_run_folder
from dstransformer.distributed.supervision.stop_signals import StopRequest
from dstransformer.distributed.world import PeerError, World, join_world, leave_world, peer_errors
from dstransformer.errors import RUN_AGAIN, DstError, UserError
from dstransformer.evaluation import Evaluation
from dstransformer.tracking import Message, RunEnd, RunStart, Tracker, build_tracker
from dstransformer.training.estimate import Estimate, estimate, plan_warnings
from dstransformer.training.final import Choice, make_final_bundle
from dstransformer.training.parent import check_parent, open_parent, recorded_parent
from dstransformer.training.provenance import describe_origin, describe_start, describe_tags
from dstransformer.training.setup import (
    Setup,
    TrainRequest,
    check_corpus,
    check_memory,
    check_setup,
    machine_memory,
    resolve_setup,
)

if TYPE_CHECKING:
    from dstransformer.training.trainer import Trainer

logger = logging.getLogger(__name__)

#: The folder of logs in a run folder.
LOGS = "logs"

#: The timeout of process groups if ``training.wait_seconds`` is 0, and of joining if ``join_seconds`` is. PyTorch
#: cannot wait for ever.
NO_TIMEOUT = timedelta(days=30)


@dataclass(frozen=True)
class DryRun:
    """The result of ``dst train --dry-run``."""

    setup: Setup
    estimate: Estimate
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "config": self.setup.config.without_secrets().model_dump(),
            "ds_config": dict(self.setup.ds_config),
            "world_size": self.setup.world_size,
            "estimate": asdict(self.estimate),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run: The run folder.
        step: Number of updates computed.
        stopped_by: The signal that stopped the run; None if it wrote its final bundle.
        evaluations: The evaluations of the bundle, by split.
        final: How the bundle was chosen; None if there is no bundle.
        cost: What the training has cost, from its first update on, also before a resume.
        devices: Number of processes.
    """

    run: str
    step: int
    stopped_by: str | None
    evaluations: Mapping[str, Evaluation]
    final: Choice | None
    cost: Cost
    devices: int

    @property
    def status(self) -> int:
        """The exit status."""
        return 0 if self.stopped_by is None else RUN_AGAIN

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "step": self.step,
            "stopped_by": self.stopped_by,
            "evaluations": {split: evaluation.to_json() for split, evaluation in self.evaluations.items()},
            "averaged_steps": [] if self.final is None else self.final.steps[self.final.chosen],
            "final": None if self.final is None else asdict(self.final),
            "cost": {**self.cost.metrics(), "flops": self.cost.flops, "devices": self.devices},
            "run": self.run,
        }


def dry_run(request: TrainRequest) -> DryRun:
    """Run all checks and plan the first epoch, without training or writing anything.

    Raises:
        UserError: Anything for which :func:`train` would raise it.
    """
    check_environment(os.environ)
    setup = resolve_setup(request, read_processes(os.environ, require_rank=False))
    check_corpus(setup, verify=True)
    check_memory(setup, 1, machine_memory(), weights=False)
    _find_checkpoint(request, setup)
    estimated = estimate(setup)
    warnings = plan_warnings(setup.config, estimated.updates_per_epoch)
    if (warning := single_process_warning(os.environ)) is not None:
        warnings.append(warning)
    return DryRun(setup, estimated, warnings)


def train(request: TrainRequest) -> Outcome:
    """Train to the last update and make the final bundle.

    Raises:
        UserError: Something in the request, its files or the environment is wrong; the run folder is untouched.
        StorageError: The run folder cannot be written.
        DstError: The processes did not join the process group, or training diverged.
    """
    processes = read_processes(os.environ)
    try:
        check_environment(os.environ)
    except UserError as error:
        error.rank = processes.rank  # the environment of other nodes may be right: each rank reports its own
        raise
    if (warning := single_process_warning(os.environ)) is not None:
        logger.warning(warning)
    resolved = _resolve(request, processes)
    # A process whose request is wrong meets the others all the same, to tell them.
    limits = (resolved.config if isinstance(resolved, Setup) else load_config("base")).training
    watched = Limits.build(limits.hang_seconds, limits.wait_seconds, limits.silence_seconds)
    with RankLog(processes) as log, Watchdog(processes, watched, log) as watchdog:
        record_collectives(os.environ, request.run / LOGS)
        timeout, patience = (
            timedelta(seconds=seconds) if seconds else NO_TIMEOUT
            for seconds in (limits.wait_seconds, limits.join_seconds)
        )
        world = join_world(processes, timeout=timeout, patience=patience, watchdog=watchdog)
        # Catch signals from here on: a process killed while DeepSpeed loads an operator leaves a lock file behind.
        seconds = resolved.config.checkpoint.stop_seconds if isinstance(resolved, Setup) else 0.0
        with (
            StopRequest(announce=processes.rank == 0, processes=processes.world_size, seconds=seconds) as stop,
            stopping_with_launcher(os.environ, lambda: stop.received is not None),
            _leave_world_at_end(world, watchdog),
            _peers_watched(watchdog, stop),
        ):
            world.raise_any(resolved if isinstance(resolved, Exception) else None)
            assert isinstance(resolved, Setup)
            return _train_collectively(request, resolved, world, watchdog, stop)


def _resolve(request: TrainRequest, processes: Processes) -> Setup | Exception:
    """Resolve the request. With several processes, return an error, to be shared with ranks that do not have it."""
    try:
        return resolve_setup(request, processes)
    except Exception as error:
        if processes.world_size == 1:
            raise
        return error


@contextmanager
def _leave_world_at_end(world: World, watchdog: Watchdog) -> Iterator[None]:
    """Destroy the process group at the end, unless other ranks do not know of an error: that would wait for them."""
    try:
        yield
    except DstError as error:
        watchdog.stop(error)
        if error.shared:
            leave_world()
        else:
            error.rank = world.rank
        raise
    watchdog.stop()
    leave_world()


@contextmanager
def _peers_watched(watchdog: Watchdog, stop: StopRequest) -> Iterator[None]:
    """Run a block. If it fails because of another process, the watchdog names that and ends this one, if it can.

    At a stop whose time is over, the other process has left, and so does this one.

    Raises:
        PeerError: Another process has died, and the watchdog did not find out which.
    """
    try:
        with peer_errors():
            yield
    except PeerError as error:
        stop.leave_if_overdue()
        watchdog.lose_peer(error)
        raise


def _train_collectively(
    request: TrainRequest, setup: Setup, world: World, watchdog: Watchdog, stop: StopRequest
) -> Outcome:
    check_setup(setup, world)
    found = _find_checkpoint_on_rank0(request, setup, world)
    with lock_run_folder(setup.run, setup.config, setup.ds_config, setup.corpus, world):
        _open_logs(setup.run / LOGS, world, watchdog)
        with _recorded_status(setup.run, world, watchdog, stop):
            outcome = _train_in_folder(request, setup, world, watchdog, stop, found)
        if world.is_rank0:
            record_exit_status(setup.run, outcome.status)
        world.barrier()
    return outcome


@contextmanager
def _recorded_status(run: Path, world: World, watchdog: Watchdog, stop: StopRequest) -> Iterator[None]:
    """Record the exit status if the block fails, or if the process has to leave it."""
    if world.is_rank0:
        stop.before_leaving = lambda: record_exit_status(run, RUN_AGAIN)
        watchdog.before_end = lambda: record_exit_status(run, STATUS)
    try:
        yield
    except BaseException as error:
        if world.is_rank0:
            record_exit_status(run, status_of(error))
        raise


def _train_in_folder(
    request: TrainRequest, setup: Setup, world: World, watchdog: Watchdog, stop: StopRequest, found: Checkpoint | None
) -> Outcome:
    # Imported late because it takes seconds: errors of the user are reported before.
    from dstransformer.training.trainer import Trainer

    tracker = build_tracker(
        setup.config.tracking,
        rank=world.rank,
        run_folder=setup.run,
        max_updates=setup.config.training.max_updates,
    )
    origin = describe_origin(request, setup, world)
    with world.collective_errors():
        checkpoint = None if found is None else read_checkpoint(found.path)
        if checkpoint is not None:
            origin["parent"] = recorded_parent(checkpoint)
        if checkpoint is not None and world.is_rank0:
            warn_if_hardware_differs(checkpoint, origin["hardware"])
            warn_if_layout_differs(checkpoint, setup.initial_state)
    for line in describe_start(setup, origin["hardware"]):
        tracker.emit(Message(line))
    watchdog.enter("the start of DeepSpeed")
    trainer = Trainer(setup, world, tracker, origin, resumes=checkpoint is not None, report=watchdog.report)
    if checkpoint is not None:
        watchdog.report(checkpoint.state.step, "loading a checkpoint")
        trainer.resume(checkpoint)
    tracker.emit(
        RunStart(
            run_name=request.name,
            config=setup.config,
            ds_config=setup.ds_config,
            manifest=setup.corpus.manifest,
            corpus=request.corpus,
            tags=describe_tags(origin, world),
            user_tags=request.tags,
            register=request.register,
            resume_step=None if checkpoint is None else checkpoint.state.step,
        )
    )
    with _report_failure(tracker, setup, world, watchdog), _peers_watched(watchdog, stop):
        outcome = _train_and_finish(trainer, setup, world, tracker, watchdog, stop)
    watchdog.enter("the end of the run")
    tracker.emit(RunEnd("finished" if outcome.stopped_by is None else "killed"))
    return outcome


def _open_logs(folder: Path, world: World, watchdog: Watchdog) -> None:
    """Make the folder of logs and write into it. Collective."""
    with world.collective_errors():
        if world.is_rank0:
            prepare_folder(folder)
    watchdog.open_folder(folder)


def _train_and_finish(
    trainer: Trainer, setup: Setup, world: World, tracker: Tracker, watchdog: Watchdog, stop: StopRequest
) -> Outcome:
    final = None
    finished = trainer.run(stop)
    cost = trainer.log_cost()
    if finished:
        final = make_final_bundle(
            setup,
            world,
            tracker,
            trainer.validator,
            trainer.step,
            trainer.evaluation,
            lambda: world.any(stop.received is not None)[0],
            watchdog.enter,
        )
    return Outcome(
        run=str(setup.run),
        step=trainer.step,
        stopped_by=(stop.received or "a signal to another process") if final is None else None,
        evaluations={} if final is None else final.evaluations,
        final=None if final is None else final.choice,
        cost=cost,
        devices=world.world_size,
    )


def _find_checkpoint_on_rank0(request: TrainRequest, setup: Setup, world: World) -> Checkpoint | None:
    """The checkpoint to resume from, found and verified by rank 0. Collective."""
    found: Checkpoint | None = None
    with world.collective_errors():
        if world.is_rank0:
            found = _find_checkpoint(request, setup)
    agreed: Checkpoint | None = world.broadcast(found)
    return agreed


def _find_checkpoint(request: TrainRequest, setup: Setup) -> Checkpoint | None:
    found = find_checkpoint(request.resume, setup.run, setup.config, setup.initial_state, setup.corpus.path)
    if request.init is not None:
        if found is not None:
            check_parent(found, request.init, setup.parent)
        elif setup.parent is None:  # no checkpoint is sound, so it is needed after all
            open_parent(request.init, setup.config.model, setup.corpus.tokenizer)
    return found


@contextmanager
def _report_failure(tracker: Tracker, setup: Setup, world: World, watchdog: Watchdog) -> Iterator[None]:
    """Report a failure to the tracker, also one in which the watchdog ends this process."""
    watchdog.on_end = lambda: tracker.emit(RunEnd("failed"))
    try:
        yield
    except KeyboardInterrupt as stop:
        watchdog.stop(stop)
        tracker.emit(RunEnd("killed"))
        if world.is_rank0 and (checkpoints := CheckpointFolder(setup.run / "checkpoints").checkpoints()):
            logger.warning("run the same command to resume from %s", checkpoints[-1].path)
        raise
    except BaseException as error:
        watchdog.stop(error)
        tracker.emit(RunEnd("failed"))
        raise
    watchdog.on_end = lambda: None
