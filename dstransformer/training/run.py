"""A training run, from the first check to the final bundle."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dstransformer.config import load_config
from dstransformer.distributed.launcher import Processes, check_launch
from dstransformer.distributed.supervision.session import Session, supervise
from dstransformer.errors import RUN_AGAIN
from dstransformer.evaluation import Evaluation
from dstransformer.evaluation.task import Task
from dstransformer.tracking import CostTotal, Message, RunEnd, build_tracker
from dstransformer.training.automatic import settle
from dstransformer.training.checkpoints.format import Checkpoint, Cost
from dstransformer.training.checkpoints.resume import read_provenance, warn_if_hardware_differs, warn_if_layout_differs
from dstransformer.training.final import Choice, make_final_bundle
from dstransformer.training.provenance import describe_provenance, describe_run, describe_start
from dstransformer.training.setup import Setup, TrainRequest, check_setup, find_resume_checkpoint, resolve_setup

if TYPE_CHECKING:
    from dstransformer.training.trainer import Trainer

logger = logging.getLogger(__name__)


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


def train(request: TrainRequest) -> Outcome:
    """Train to the last update and make the final bundle.

    Raises:
        UserError: Something in the request, its files or the environment is wrong. No checkpoint or result is changed.
        StorageError: The run folder cannot be written.
        DstError: The processes did not join the process group, or training diverged.
    """
    processes = check_launch(os.environ)
    resolved = _resolve(request, processes)
    # Join even if this rank's request is invalid, so that every rank raises the error.
    config = load_config("base") if isinstance(resolved, Exception) else resolved.config
    with supervise(processes, config, request.run) as session:
        setup = settle(session.agree_on(resolved), request.resume, session.world)
        check_setup(setup, session.world)
        find = partial(find_resume_checkpoint, request, setup)
        checkpoint, seen = session.world.compute_on_rank0(find)
        with session.hold_run_folder(setup.run, setup.config, setup.ds_config, setup.corpus):
            if session.world.compute_on_rank0(setup.checkpoints.folders) != seen:  # a run that was stopping wrote one
                checkpoint, _ = session.world.compute_on_rank0(find)
            trainer = _start(request, setup, checkpoint, session)
            with closing(trainer.data), session.reporting_failure(lambda error: _report_failure(trainer, error)):
                finished = trainer.fit()
                cost = trainer.cost.total
                trainer.tracker.emit(CostTotal(trainer.state.step, trainer.cost.totals))
                final = make_final_bundle(trainer) if finished else None
            session.enter("the end of the run")
            trainer.tracker.emit(RunEnd("killed" if final is None else "finished"))
            outcome = Outcome(
                run=str(setup.run),
                step=trainer.state.step,
                stopped_by=session.stopped_by if final is None else None,
                evaluations={} if final is None else final.evaluations,
                final=None if final is None else final.choice,
                cost=cost,
                devices=processes.world_size,
            )
            session.end(outcome.status)
            return outcome


def _resolve(request: TrainRequest, processes: Processes) -> Setup | Exception:
    """Resolve the request. With several processes, return an error, so that the other ranks can raise it too."""
    try:
        return resolve_setup(request, processes)
    except Exception as error:
        if processes.world_size == 1:
            raise
        return error


def _start(request: TrainRequest, setup: Setup, checkpoint: Checkpoint | None, session: Session) -> Trainer:
    """Build the trainer, resume from the checkpoint, and report the run to the tracker. Collective."""
    # Imported late because it takes seconds, so that a user's mistake is reported first.
    from dstransformer.training.build import build_trainer

    world, updates = session.world, setup.config.training.max_updates
    tracker = build_tracker(setup.config.tracking, rank=world.rank, run_folder=setup.run, max_updates=updates)
    stored = None if checkpoint is None else world.compute_on_rank0(lambda: read_provenance(checkpoint))
    provenance = describe_provenance(request, setup, stored, world)
    for line in describe_run(setup, provenance["hardware"]):
        tracker.emit(Message(line))
    for note in Task.build(setup.corpus.manifest, setup.config.validation).notes if world.is_rank0 else ():
        logger.warning(note)
    if checkpoint is not None and stored is not None and world.is_rank0:
        warn_if_layout_differs(checkpoint, setup.initial_state)
        warn_if_hardware_differs(checkpoint, stored, provenance["hardware"])
    session.enter("the start of DeepSpeed")
    trainer = build_trainer(setup, provenance, tracker, session, resumes=checkpoint is not None)
    if checkpoint is not None:
        trainer.restore(checkpoint)
    tracker.emit(describe_start(request, setup, provenance, checkpoint))
    return trainer


def _report_failure(trainer: Trainer, error: BaseException | None) -> None:
    """Tell the tracker that the run has failed or, at a second Ctrl-C, was killed."""
    is_killed = isinstance(error, KeyboardInterrupt)
    trainer.tracker.emit(RunEnd("killed" if is_killed else "failed"))
    if is_killed and (latest := trainer.checkpoints.latest()) is not None:
        logger.warning("run the same command to resume from %s", latest.path)
