"""Builds a trainer and its collaborators from a resolved experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dstransformer.distributed.supervision.session import Session
from dstransformer.evaluation.validation import Validator
from dstransformer.tracking.events import Tracker
from dstransformer.training.checkpoints.manager import CheckpointManager
from dstransformer.training.early_stopping import EarlyStopping
from dstransformer.training.engine import Engine
from dstransformer.training.metrics import CostMeter, DeviceUse, TrainingMetrics
from dstransformer.training.recovery import Recovery
from dstransformer.training.setup import Setup
from dstransformer.training.trainer import Trainer
from dstransformer.training.trial import try_micro_batches
from dstransformer.training.update_stream import build_update_stream


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
        data=build_update_stream(config, corpus, session),
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
