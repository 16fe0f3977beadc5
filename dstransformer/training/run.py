"""A training run, from the first check to the final bundle."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Session, supervise
from dstransformer.distributed.supervision.stop_signals import StopRequested
from dstransformer.distributed.world import World
from dstransformer.errors import RUN_AGAIN
from dstransformer.evaluation import Evaluation
from dstransformer.tracking.events import CostTotal, FanOut, Message, RunEnd
from dstransformer.training.automatic import choose_on_all
from dstransformer.training.checkpoints.format import Cost
from dstransformer.training.checkpoints.mirror import Mirror, MirrorTracker, fetch_resumed
from dstransformer.training.checkpoints.resume import Resumed, check_resumed, warn_if_differs
from dstransformer.training.provenance import describe_provenance, describe_run, describe_start, describe_trial
from dstransformer.training.setup import Setup, TrainRequest, check_setup, find_resume_point, resolve_on_all

if TYPE_CHECKING:
    from dstransformer.training.final import Choice
    from dstransformer.training.trainer import Trainer

logger = logging.getLogger(__name__)

_ADVICE_ON_MEMORY = (
    "resume with training.activation_checkpointing=true, or start a new run with a larger batch.micro_batches"
)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run: The run folder.
        step: Number of updates computed.
        stopped_by: What stopped the run, such as SIGTERM; None if it wrote its final bundle.
        evaluations: The evaluations of the bundle, by split.
        final: How the bundle was chosen; None if there is no bundle.
        cost: What the training has cost since its first update, before resumes too.
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


def train(request: TrainRequest, setup: Setup | None = None) -> Outcome:
    """Train to the last update and make the final bundle.

    Args:
        request: The options.
        setup: What :func:`resolve_on_all` makes of them, if that was done before this module was imported.

    Raises:
        UserError: Something in the request, its files or the environment is wrong. No checkpoint or result is changed.
        StorageError: The run folder cannot be written.
        DstError: The processes did not join the process group, or training diverged.
    """
    setup = setup or resolve_on_all(request)
    with supervise(read_processes(os.environ), setup.config, setup.run) as session:
        world = session.world
        world.raise_any(None)
        with session.hold_run_folder(setup.run, setup.config, setup.ds_config, setup.corpus):
            setup, resumed = _prepare(request, setup, world)
            with session.recording(setup.run):
                world.compute_on_rank0(setup.write)
                outcome = _run(request, setup, resumed, session)
                session.end(outcome.status)
                return outcome


def _prepare(request: TrainRequest, setup: Setup, world: World) -> tuple[Setup, Resumed | None]:
    """Find the checkpoint to resume from, choose what the devices decide, and check the experiment. Collective."""
    checkpoint, folder = setup.config.checkpoint, setup.checkpoints
    resume = world.compute_on_rank0(lambda: fetch_resumed(request.resume, checkpoint, folder))
    request = replace(request, resume=resume)
    resumed = world.compute_on_rank0(lambda: find_resume_point(request, setup))
    setup = choose_on_all(setup, resumed, world)
    check_setup(setup, world)
    if resumed is not None:
        world.compute_on_rank0(lambda: check_resumed(resumed, setup.config, setup.free_keys))
    return setup, resumed


def _run(request: TrainRequest, setup: Setup, resumed: Resumed | None, session: Session) -> Outcome:
    """Train, and make the final bundle unless the run is stopped. Collective."""
    # What training needs is imported late because it takes seconds, so that a user's mistake is reported first.
    from dstransformer.decoding.devices import memory_errors
    from dstransformer.training.final import make_final_bundle

    trainer = _start(request, setup, resumed, session)
    tracker, run, devices = trainer.tracker, str(setup.run), setup.world_size
    failures = session.reporting_failure(lambda error: _report_failure(trainer, error))
    with closing(trainer.data), failures, memory_errors("train", _ADVICE_ON_MEMORY):
        finished = trainer.fit()
        step, cost = trainer.state.step, trainer.cost.total
        tracker.emit(CostTotal(step, trainer.cost.totals))
        final = None
        with suppress(StopRequested):
            final = make_final_bundle(trainer) if finished else None
    session.enter("the end of the run")
    if final is None:
        tracker.emit(RunEnd("killed"))
        return Outcome(run, step, session.stopped_by, {}, None, cost, devices)
    tracker.emit(RunEnd("finished"))
    choice, evaluations = final
    return Outcome(run, step, None, evaluations, choice, cost, devices)


def _start(request: TrainRequest, setup: Setup, resumed: Resumed | None, session: Session) -> Trainer:
    """Build the trainer, resume from the checkpoint, and report the run to the tracker. Collective."""
    from dstransformer.training.build import build_tracker, build_trainer
    from dstransformer.training.profiling import Profiler

    world, updates = session.world, setup.config.training.max_updates
    tracker = build_tracker(setup.config.tracking, rank=world.rank, run_folder=setup.run, max_updates=updates)
    if world.is_rank0 and request.profile:
        tracker = FanOut([tracker, Profiler(request.profile, setup.run, tracker)])
    kept = setup.config.checkpoint
    if world.is_rank0 and kept.mirror is not None:
        tracker = FanOut([tracker, MirrorTracker(Mirror(kept.mirror), setup.checkpoints, kept.retry_seconds)])
    provenance = describe_provenance(request, setup, resumed, world)
    for line in describe_run(setup, provenance["hardware"]):
        tracker.emit(Message(line))
    for note in setup.task.notes if world.is_rank0 else ():
        logger.warning(note)
    if resumed is not None and world.is_rank0:
        warn_if_differs(resumed, setup.initial_state, provenance["hardware"])
    session.enter("the start of DeepSpeed")
    trainer = build_trainer(setup, provenance, tracker, session, resumes=resumed is not None)
    if resumed is not None:
        trainer.restore(resumed.checkpoint)
    if setup.micro_batches_from == "trial":
        setup = setup.with_config(trainer.config)
        world.compute_on_rank0(setup.write)
        tracker.emit(Message(describe_trial(setup, resumed)))
    tracker.emit(describe_start(request, setup, provenance, resumed))
    return trainer


def _report_failure(trainer: Trainer, error: BaseException | None) -> None:
    """Tell the tracker that the run has failed or, at a second Ctrl-C, was killed."""
    is_killed = isinstance(error, KeyboardInterrupt)
    trainer.tracker.emit(RunEnd("killed" if is_killed else "failed"))
    if is_killed and (latest := trainer.checkpoints.latest()) is not None:
        logger.warning("run the same command to resume from %s", latest.path)
