"""Builds a trainer and its collaborators, and the tracker of a run, from a resolved experiment."""

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
from dstransformer.tracking.events import FanOut, NullTracker, Tracker
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLog
from dstransformer.tracking.mlflow.location import resolve_experiment, resolve_tracking_uri
from dstransformer.tracking.mlflow.tracker import MlflowTracker
from dstransformer.training.checkpoints.manager import CheckpointManager
from dstransformer.training.early_stopping import EarlyStopping
from dstransformer.training.engine import Engine
from dstransformer.training.metrics import CostMeter, DeviceUse, TrainingMetrics
from dstransformer.training.recovery import Recovery
from dstransformer.training.setup import Setup
from dstransformer.training.trainer import Trainer
from dstransformer.training.trial import try_micro_batches
from dstransformer.training.update_stream import UpdateStream, build_loader

logger = logging.getLogger(__name__)


def build_trainer(
    setup: Setup, provenance: Mapping[str, Any], tracker: Tracker, session: Session, *, resumes: bool = False
) -> Trainer:
    """Build a trainer at the first update. Collective.

    Its configuration is that of the experiment, but for a number of micro-batches that is found by trial.

    Args:
        setup: The experiment.
        provenance: The provenance stored in the bundles.
        tracker: Receives the events of the run.
        session: The process group, stop requests and monitoring.
        resumes: Whether :meth:`Trainer.restore` follows, so that the initial weights do not matter.

    Raises:
        ConfigError: DeepSpeed rejects its configuration, or no number of micro-batches fits the memory.
        DataError: The weights that training starts from cannot be read.
    """
    corpus, world = setup.corpus, session.world
    engine = Engine(
        setup.config,
        setup.ds_config,
        corpus.tokenizer.vocab_size,
        world,
        None if setup.pretrained is None or resumes else setup.pretrained.fill,
        corpus.tokenizer.src.vocab_size,
    )
    if setup.micro_batches_from == "trial":
        setup = try_micro_batches(setup, engine, session)
    config = setup.config
    checkpoints = CheckpointManager(setup.checkpoints, config, corpus.tokenizer, provenance, session, tracker)
    cost = CostMeter(config, corpus.tokenizer.vocab_size, world.world_size)
    return Trainer(
        config=config,
        state=setup.initial_state,
        engine=engine,
        data=UpdateStream(build_loader(config, corpus, world), session),
        validator=Validator(config, corpus.tokenizer, session, setup.precision, setup.task),
        corpus=corpus,
        checkpoints=checkpoints,
        recovery=Recovery(config.training, setup.precision, checkpoints, session, tracker),
        early_stopping=EarlyStopping(config.validation),
        metrics=TrainingMetrics(world, DeviceUse(cost, setup.precision, world)),
        cost=cost,
        tracker=tracker,
        session=session,
        is_pretrained=setup.pretrained is not None,
    )


def build_tracker(config: TrackingConfig, *, rank: int, run_folder: Path, max_updates: int) -> Tracker:
    """Build the tracker: progress, ``metrics.jsonl`` and, if enabled, MLflow on rank 0; a ``NullTracker`` elsewhere.

    Raises:
        ConfigError: The tracking address is not that of a store; raised on all ranks.
    """
    uri = resolve_tracking_uri(config.uri, run_folder) if config.enabled else None
    if rank != 0:
        return NullTracker()
    console = ConsoleProgress(max_updates)
    trackers: list[Tracker] = [console, MetricsLog(run_folder / METRICS_NAME)]
    if uri is not None:
        experiment = resolve_experiment(config.experiment)
        announce = logger.info if is_quiet() else console.print
        trackers.append(
            MlflowTracker(run_folder, uri, experiment, system_metrics=config.system_metrics, announce=announce)
        )
    trackers += [CURVES[name](run_folder) for name in dict.fromkeys(config.also)]
    return FanOut(trackers)
