"""Builds a trainer and its collaborators, and the tracker of a run, from an experiment and its plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstransformer.config.schema import TrackingConfig
from dstransformer.distributed.supervision.session import Session
from dstransformer.evaluation.validation import Validator
from dstransformer.io.progress import is_quiet
from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.curves import CURVES
from dstransformer.tracking.events import FanOut, Message, NullTracker, Tracker
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLog
from dstransformer.tracking.mlflow.location import resolve_experiment, resolve_tracking_uri
from dstransformer.tracking.mlflow.tracker import MlflowTracker
from dstransformer.training.checkpoints.manager import CheckpointManager
from dstransformer.training.checkpoints.mirror import Mirror, MirrorTracker
from dstransformer.training.checkpoints.resume import warn_if_differs
from dstransformer.training.early_stopping import EarlyStopping
from dstransformer.training.engine import Engine
from dstransformer.training.experiment import Experiment
from dstransformer.training.metrics import CostMeter, DeviceUse, TrainingMetrics
from dstransformer.training.plan import Plan
from dstransformer.training.profiling import Profiler
from dstransformer.training.provenance import describe_provenance, describe_run, describe_start, describe_trial
from dstransformer.training.recovery import Recovery
from dstransformer.training.trainer import Trainer
from dstransformer.training.trial import try_micro_batches
from dstransformer.training.update_stream import UpdateStream, build_loader

logger = logging.getLogger(__name__)


def build_trainer(experiment: Experiment, plan: Plan, session: Session) -> Trainer:
    """Build the trainer at the update that the run begins or resumes with, and report the run. Collective.

    Args:
        experiment: The experiment, with the configuration of the plan.
        plan: How it is computed.
        session: The process group, stop requests and monitoring.

    Raises:
        ConfigError: DeepSpeed rejects its configuration, or no number of micro-batches fits the memory.
        DataError: The weights that training starts from cannot be read.
    """
    world, resumed = session.world, plan.resumed
    provenance = describe_provenance(experiment, plan, world)
    tracker = _build_listeners(experiment) if world.is_rank0 else NullTracker()
    for line in describe_run(experiment, plan) if world.is_rank0 else ():
        tracker.emit(Message(line))
    if resumed is not None and world.is_rank0:
        warn_if_differs(resumed, experiment.initial_state, plan.hardware)
    session.enter("the start of DeepSpeed")
    trainer = assemble_trainer(experiment, plan, provenance, tracker, session)
    if resumed is not None:
        trainer.restore(resumed.checkpoint)
    experiment = experiment.with_config(trainer.config)
    if plan.micro_batches_from == "trial":
        world.compute_on_rank0(experiment.write)
        tracker.emit(Message(describe_trial(trainer.config, resumed)))
    tracker.emit(describe_start(experiment, provenance, resumed))
    return trainer


def assemble_trainer(
    experiment: Experiment, plan: Plan, provenance: Mapping[str, Any], tracker: Tracker, session: Session
) -> Trainer:
    """Build a trainer at the first update from its collaborators. Collective.

    Its configuration is that of the experiment, but for a number of micro-batches that is found by trial.

    Args:
        experiment: The experiment, with the configuration of the plan.
        plan: How it is computed. If it resumes, :meth:`Trainer.restore` follows.
        provenance: The provenance stored in the bundles.
        tracker: Receives the events of the run.
        session: The process group, stop requests and monitoring.

    Raises:
        ConfigError: DeepSpeed rejects its configuration, or no number of micro-batches fits the memory.
        DataError: The weights that training starts from cannot be read.
    """
    corpus, world, pretrained = experiment.corpus, session.world, experiment.pretrained
    engine = Engine(
        experiment.config,
        experiment.ds_config,
        corpus.tokenizer.vocab_size,
        world,
        None if pretrained is None or plan.resumed is not None else pretrained.fill,
        corpus.tokenizer.src.vocab_size,
    )
    if plan.micro_batches_from == "trial":
        experiment = try_micro_batches(experiment, engine, session)
    config, precision = experiment.config, experiment.precision
    checkpoints = CheckpointManager(experiment.checkpoints, config, corpus.tokenizer, provenance, session, tracker)
    cost = CostMeter(config, corpus.tokenizer.vocab_size, world.world_size)
    return Trainer(
        config=config,
        state=experiment.initial_state,
        engine=engine,
        data=UpdateStream(build_loader(config, corpus, experiment.mixture, world), session),
        validator=Validator(config, corpus.tokenizer, session, precision, experiment.task),
        corpus=corpus,
        checkpoints=checkpoints,
        recovery=Recovery(config.training, precision, checkpoints, session, tracker),
        early_stopping=EarlyStopping(config.validation),
        metrics=TrainingMetrics(world, DeviceUse(cost, precision, world)),
        cost=cost,
        tracker=tracker,
        session=session,
        is_pretrained=pretrained is not None,
    )


def build_tracker(config: TrackingConfig, *, run_folder: Path, max_updates: int) -> FanOut:
    """Build the tracker of rank 0: progress, ``metrics.jsonl``, and what the configuration names.

    Raises:
        ConfigError: The tracking address is not that of a store.
    """
    console = ConsoleProgress(max_updates)
    trackers: list[Tracker] = [console, MetricsLog(run_folder / METRICS_NAME)]
    if config.enabled:
        uri, experiment = resolve_tracking_uri(config.uri, run_folder), resolve_experiment(config.experiment)
        announce = logger.info if is_quiet() else console.print
        trackers.append(
            MlflowTracker(run_folder, uri, experiment, system_metrics=config.system_metrics, announce=announce)
        )
    trackers += [CURVES[name](run_folder) for name in dict.fromkeys(config.also)]
    return FanOut(trackers)


def _build_listeners(experiment: Experiment) -> Tracker:
    """The tracker of rank 0, and what else listens to its run: a profiler, a mirror of the checkpoints."""
    config, run, profiled = experiment.config, experiment.run, experiment.request.profile
    tracker = build_tracker(config.tracking, run_folder=run, max_updates=config.training.max_updates)
    listeners: list[Tracker] = [tracker]
    if profiled:
        listeners.append(Profiler(profiled, run, tracker))
    if (address := config.checkpoint.mirror) is not None:
        listeners.append(MirrorTracker(Mirror(address), experiment.checkpoints, config.checkpoint.retry_seconds))
    return FanOut(listeners)
