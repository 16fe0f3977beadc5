"""A training run, from the request to the final bundle: the page to begin with."""

from __future__ import annotations

import logging
import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from dstransformer.distributed.launcher import check_launch
from dstransformer.training.experiment import Experiment, TrainRequest, open_experiment
from dstransformer.training.outcome import Outcome

if TYPE_CHECKING:
    from dstransformer.distributed.supervision.session import Session
    from dstransformer.training.plan import Plan
    from dstransformer.training.trainer import Trainer

logger = logging.getLogger(__name__)

_ADVICE_ON_MEMORY = (
    "resume with training.activation_checkpointing=true, or start a new run with a larger batch.micro_batches"
)


def train(request: TrainRequest) -> Outcome:
    """Train to the last update and make the final bundle.

    Args:
        request: The options.

    Raises:
        UserError: Something in the request, its files or the environment is wrong. No checkpoint or result is changed.
        StorageError: The run folder cannot be written.
        DstError: The processes did not join the process group, or training diverged.
    """
    processes = check_launch(os.environ)
    with open_experiment(request, processes) as requested:
        # PyTorch is imported from here on, which takes seconds: a mistake has been reported before.
        from dstransformer.distributed.supervision.session import supervise
        from dstransformer.training.plan import make_plan

        with supervise(processes, requested.config, requested.run) as session:
            experiment, plan = make_plan(requested, session)
            with session.recording(experiment.run):
                outcome = _run(experiment, plan, session)
                session.end(outcome.status)
                return outcome


def _run(experiment: Experiment, plan: Plan, session: Session) -> Outcome:
    """Train, and make the final bundle unless the run is stopped. Collective."""
    from dstransformer.decoding.devices import memory_errors
    from dstransformer.distributed.supervision.stop_signals import StopRequested
    from dstransformer.tracking.events import CostTotal, RunEnd
    from dstransformer.training.build import build_trainer
    from dstransformer.training.final import make_final_bundle

    trainer = build_trainer(experiment, plan, session)
    tracker, run, devices = trainer.tracker, str(experiment.run), experiment.world_size
    failures = session.reporting_failure(lambda error: _report_failure(trainer, error))
    with closing(trainer.data), failures, memory_errors("train", _ADVICE_ON_MEMORY):
        is_finished = trainer.fit()
        step, cost = trainer.state.step, trainer.cost.total
        tracker.emit(CostTotal(step, trainer.cost.totals))
        final = None
        with suppress(StopRequested):
            final = make_final_bundle(trainer) if is_finished else None
    session.enter("the end of the run")
    if final is None:
        tracker.emit(RunEnd("killed"))
        return Outcome(run, step, session.stopped_by, {}, None, cost, devices)
    tracker.emit(RunEnd("finished"))
    choice, evaluations = final
    return Outcome(run, step, None, evaluations, choice, cost, devices)


def _report_failure(trainer: Trainer, error: BaseException | None) -> None:
    """Tell the tracker that the run has failed or, at a second Ctrl-C, was killed."""
    from dstransformer.tracking.events import RunEnd

    is_killed = isinstance(error, KeyboardInterrupt)
    trainer.tracker.emit(RunEnd("killed" if is_killed else "failed"))
    if is_killed and (latest := trainer.checkpoints.latest()) is not None:
        logger.warning("run the same command to resume from %s", latest.path)
