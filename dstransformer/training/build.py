"""Builds the collaborators of a run: its tracker, its engine and its trainer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dstransformer.config.schema import TrackingConfig
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World
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
from dstransformer.training.provenance import describe_run
from dstransformer.training.recovery import Recovery
from dstransformer.training.trainer import Trainer
from dstransformer.training.update_stream import UpdateStream, build_loader

logger = logging.getLogger(__name__)


def open_tracker(experiment: Experiment, world: World) -> Tracker:
    """The tracker of a run on rank 0: its listeners, and a profiler and a mirror of the checkpoints if asked for.

    Raises:
        ConfigError: The tracking address is not that of a store.
    """
    if not world.is_rank0:
        return NullTracker()
    config, run, profiled = experiment.config, experiment.run, experiment.request.profile
    tracker = build_tracker(config.tracking, run_folder=run, max_updates=config.training.max_updates)
    if profiled:
        tracker.add(Profiler(profiled, run, tracker))
    if (address := config.checkpoint.mirror) is not None:
        tracker.add(MirrorTracker(Mirror(address), experiment.checkpoints, config.checkpoint.retry_seconds))
    return tracker


def announce(experiment: Experiment, plan: Plan, tracker: Tracker, world: World) -> None:
    """Print the first lines of a run and the warnings of its plan, on rank 0."""
    if not world.is_rank0:
        return
    for warning in plan.warnings:
        logger.warning(warning)
    for line in describe_run(experiment, plan):
        tracker.emit(Message(line))
    if plan.resumed is not None:
        warn_if_differs(plan.resumed, experiment.initial_state, plan.hardware)


def build_engine(experiment: Experiment, plan: Plan, session: Session) -> Engine:
    """Build the engine, with the weights of the bundle that a new run starts from. Collective.

    Raises:
        ConfigError: DeepSpeed rejects its configuration.
        DataError: The bundle cannot be read.
    """
    tokenizer, pretrained = experiment.corpus.tokenizer, experiment.pretrained
    if plan.threads:
        torch.set_num_threads(plan.threads[session.world.rank])
    session.enter("the start of DeepSpeed")
    return Engine(
        experiment.config,
        experiment.ds_config,
        tokenizer.vocab_size,
        session.world,
        initial=pretrained.fill if pretrained is not None and plan.resumed is None else None,
        src_vocab_size=tokenizer.src.vocab_size,
    )


def build_trainer(
    experiment: Experiment, engine: Engine, provenance: Mapping[str, Any], tracker: Tracker, session: Session
) -> Trainer:
    """Build a trainer at the first update from its collaborators. If the run resumes, :meth:`Trainer.restore` follows.

    Args:
        experiment: The experiment, with the final number of micro-batches.
        engine: Its engine.
        provenance: The provenance stored in the bundles.
        tracker: Receives the events of the run.
        session: The process group, stop requests and monitoring.
    """
    config, precision, tokenizer = experiment.config, experiment.precision, experiment.corpus.tokenizer
    checkpoints = CheckpointManager(experiment.checkpoints, config, tokenizer, provenance, session, tracker)
    cost = CostMeter(config, tokenizer.vocab_size, experiment.world_size)
    return Trainer(
        experiment=experiment,
        state=experiment.initial_state,
        engine=engine,
        data=UpdateStream(build_loader(experiment, session.world), session),
        validator=Validator(config, tokenizer, session, precision, experiment.task),
        checkpoints=checkpoints,
        recovery=Recovery(config.training, precision, checkpoints, session, tracker),
        early_stopping=EarlyStopping(config.validation),
        metrics=TrainingMetrics(session.world, DeviceUse(cost, precision, session.world)),
        cost=cost,
        tracker=tracker,
        session=session,
    )


def build_tracker(config: TrackingConfig, *, run_folder: Path, max_updates: int) -> FanOut:
    """Build the tracker of rank 0: progress, ``metrics.jsonl``, and what the configuration names.

    Raises:
        ConfigError: The tracking address is not that of a store.
    """
    console = ConsoleProgress(max_updates)
    trackers: list[Tracker] = [console, MetricsLog(run_folder / METRICS_NAME)]
    if config.enabled:
        uri, mlflow_experiment = resolve_tracking_uri(config.uri, run_folder), resolve_experiment(config.experiment)
        show = logger.info if is_quiet() else console.print
        trackers.append(
            MlflowTracker(run_folder, uri, mlflow_experiment, system_metrics=config.system_metrics, announce=show)
        )
    trackers += [CURVES[name](run_folder) for name in dict.fromkeys(config.also)]
    return FanOut(trackers)
