"""A training run, from the request to the final bundle: the page to begin with."""

from __future__ import annotations

import logging
import os
from contextlib import closing, suppress
from functools import partial
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
        from dstransformer.training.plan import agree_on_plan

        # From joining to the end: if a process dies or hangs, all end; a stop signal ends the run with a checkpoint.
        with supervise(processes, requested.config, requested.run) as session:
            plan = agree_on_plan(requested, session)
            experiment = requested.with_config(plan.config)
            with session.recording(experiment.run):  # the logs of all ranks, and how the run ended
                outcome = _run(experiment, plan, session)
                session.end(outcome.status)
                return outcome


def _run(experiment: Experiment, plan: Plan, session: Session) -> Outcome:
    """Build the trainer, train, and make the final bundle unless the run is stopped. Collective."""
    from dstransformer.decoding.devices import memory_errors
    from dstransformer.distributed.supervision.stop_signals import StopRequested
    from dstransformer.tracking.events import CostTotal, Message, RunEnd
    from dstransformer.training.build import announce, build_engine, build_trainer, open_tracker
    from dstransformer.training.final import make_final_bundle
    from dstransformer.training.provenance import describe_provenance, describe_start, describe_trial
    from dstransformer.training.trial import try_micro_batches

    provenance = describe_provenance(experiment, plan, session.world)
    tracker = open_tracker(experiment, session.world)
    announce(experiment, plan, tracker, session.world)
    engine = build_engine(experiment, plan, session)
    if plan.micro_batches_from == "trial":
        experiment = try_micro_batches(experiment, engine, session)
        tracker.emit(Message(describe_trial(experiment.config, plan.resumed)))
    trainer = build_trainer(experiment, engine, provenance, tracker, session)
    if plan.resumed is not None:
        trainer.restore(plan.resumed.checkpoint)
    tracker.emit(describe_start(experiment, provenance, plan.resumed))

    reporting = session.reporting_failure(partial(_report_failure, trainer))
    # The innermost first: memory that ran out gets its advice, the tracker hears of it, the loader's threads end.
    with closing(trainer.data), reporting, memory_errors("train", _ADVICE_ON_MEMORY):
        is_finished = trainer.fit()
        tracker.emit(CostTotal(trainer.state.step, trainer.cost.totals))
        final = None
        if is_finished:
            with suppress(StopRequested):
                final = make_final_bundle(trainer)
    session.enter("the end of the run")
    tracker.emit(RunEnd("killed" if final is None else "finished"))
    choice, evaluations = final or (None, {})
    return Outcome(
        run=str(experiment.run),
        step=trainer.state.step,
        stopped_by=session.stopped_by if final is None else None,
        evaluations=evaluations,
        final=choice,
        cost=trainer.cost.total,
        devices=experiment.world_size,
    )


def _report_failure(trainer: Trainer, error: BaseException | None) -> None:
    """Tell the tracker that the run has failed or, at a second Ctrl-C, was killed."""
    from dstransformer.tracking.events import RunEnd

    is_killed = isinstance(error, KeyboardInterrupt)
    trainer.tracker.emit(RunEnd("killed" if is_killed else "failed"))
    if is_killed and (latest := trainer.checkpoints.latest()) is not None:
        logger.warning("run the same command to resume from %s", latest.path)
