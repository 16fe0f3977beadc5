"""Resuming: finds the checkpoint, checks that the run fits it, and reports what changes."""

from __future__ import annotations

import json
import logging
import math
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dstransformer.config import Config
from dstransformer.data import Corpus
from dstransformer.errors import ConfigError, DataError, counted
from dstransformer.model import open_bundle
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import Checkpoint, TrainState
from dstransformer.training.schedule import describe_jump

logger = logging.getLogger(__name__)

#: Sections that determine what an update computes. They must not change during a run.
FIXED_SECTIONS = ("model", "loss", "optimizer", "batch")
FIXED_KEYS = (
    "training.seed", "training.bpe_dropout", "training.unigram_alpha", "training.augment", "training.mixture",
    "training.window_pairs", "training.int8_weights", "training.freeze",
)  # fmt: skip


class ResumePoint(NamedTuple):
    """What a run resumes from.

    Attributes:
        checkpoint: The checkpoint, fully verified.
        config: The configuration that it was trained with.
        provenance: The provenance of its model.
    """

    checkpoint: Checkpoint
    config: Config
    provenance: Mapping[str, Any]


def find_resumed(resume: str, folder: CheckpointFolder, corpus: Corpus) -> ResumePoint | None:
    """Find and fully verify the checkpoint to resume from; None for a new run. See :meth:`CheckpointFolder.find`.

    Raises:
        ConfigError: The run folder holds results, but no checkpoint.
        DataError: The checkpoint is damaged, of an earlier format, or was trained on another corpus.
    """
    checkpoint = folder.find(resume)
    if checkpoint is None:
        _check_without_checkpoints(folder.run, resume)
        return None
    if checkpoint.state.corpus != corpus.manifest.build_key:
        raise DataError(
            f"cannot resume from {checkpoint.path}: it was trained on another corpus than {corpus.path} "
            "(different text, tokenizer or cleaning); give that corpus with --corpus, or start a new run with another "
            "--run"
        )
    bundle = open_bundle(checkpoint.bundle)
    return ResumePoint(checkpoint, bundle.training_config(), bundle.provenance)


def check_resumed(resumed: ResumePoint, config: Config, free: Collection[str] = ()) -> None:
    """Check that a run can go on with a configuration, and log which values change.

    Fixed values that are ``free`` may differ all the same, and nothing is logged of them.

    Raises:
        ConfigError: A value differs that must not change during a run, or the checkpoint is past the last update.
    """
    checkpoint = resumed.checkpoint
    if checkpoint.state.step > config.training.max_updates:
        raise ConfigError(
            f"training.max_updates is {config.training.max_updates}, but {checkpoint.path} is further: raise it, "
            "or resume from an earlier checkpoint with --resume PATH"
        )
    old, new = _flatten(resumed.config.without_secrets()), _flatten(config.without_secrets())
    new = {key: value for key, value in new.items() if key not in free}
    for key in new:
        fixed = key.partition(".")[0] in FIXED_SECTIONS or key in FIXED_KEYS
        if fixed and old[key] != new[key]:
            assignment = shlex.quote(f"{key}={_as_set(old[key])}")
            raise ConfigError(
                f"{key} is {_as_set(new[key])}, but {checkpoint.path} was trained with {_as_set(old[key])}: "
                f"set {assignment} to resume, or start a new run with another --run"
            )
    for key in sorted(new):
        if old[key] != new[key]:
            before, now = json.dumps(old[key]), json.dumps(new[key])
            logger.warning("from update %d on %s is %s; it was %s", checkpoint.state.step + 1, key, now, before)
    if (jump := describe_jump(checkpoint.state.step, resumed.config, config)) is not None:
        logger.warning(jump)


def _check_without_checkpoints(run: Path, resume: str) -> None:
    """Refuse to start a new run where another has left its results, but no checkpoint to resume from."""
    if (run / "bundle").is_dir():
        raise ConfigError(
            f"{run} holds the bundle of a run whose checkpoints are gone, and a new run would replace it: choose "
            "another --run, or move the old one"
        )
    metrics = run / "metrics.jsonl"
    if resume == "never" and metrics.is_file() and metrics.stat().st_size:
        raise ConfigError(
            f"{run} holds the metrics of a run without checkpoints, and a new run would replace them: choose another "
            "--run, move the old one, or start over in it with --resume auto"
        )


def _as_set(value: Any) -> str:
    """A value as ``--set`` reads it: YAML on one line, without the keys that are null."""
    return yaml.safe_dump(_stated(value), default_flow_style=True, width=math.inf, sort_keys=False).split("\n")[0]


def _stated(value: Any) -> Any:
    if isinstance(value, list):
        return [_stated(item) for item in value]
    if isinstance(value, dict):
        return {name: _stated(item) for name, item in value.items() if item is not None}
    return value


def _flatten(config: Config) -> dict[str, Any]:
    """All values of a configuration by ``section.key``."""
    flat: dict[str, Any] = {}
    for section, values in config.model_dump().items():
        if isinstance(values, dict):
            flat |= {f"{section}.{key}": value for key, value in values.items()}
        else:
            flat[section] = values
    return flat


def warn_if_differs(resumed: ResumePoint, state: TrainState, hardware: Mapping[str, str]) -> None:
    """Warn that the run resumes in another layout or precision, or on other hardware: last bits of results differ."""
    checkpoint = resumed.checkpoint
    old, new = (
        f"{counted(one.world_size, 'rank')}, ZeRO stage {one.zero_stage}, {one.precision}"
        for one in (checkpoint.state, state)
    )
    if old != new:
        logger.warning(
            "%s was computed with %s, this run resumes with %s: the same updates follow, but results differ in the "
            "last bits%s",
            checkpoint.path, old, new,
            "" if checkpoint.state.precision == state.precision else " of the lower precision",
        )  # fmt: skip
    before = resumed.provenance.get("hardware", hardware)
    if before != hardware:
        old, new = (", ".join(f"{name} {value}" for name, value in what.items()) for what in (before, hardware))
        logger.warning(
            "%s was computed with %s, this run resumes with %s: results may differ in the last bits",
            checkpoint.path, old, new,
        )  # fmt: skip
