"""Going on from a checkpoint: which one, whether this run may, and what it changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dstransformer.config import Config, read_config
from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.model import open_bundle
from dstransformer.training.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    TrainState,
    read_checkpoint,
    verify_checkpoint,
)

logger = logging.getLogger(__name__)

#: Configuration that decides what an update is; it must not change in the middle of a run.
FIXED_SECTIONS = ("model", "loss", "optimizer", "batch")


def find_checkpoint(resume: str, run: Path, config: Config, start: TrainState, corpus: Path) -> Checkpoint | None:
    """The checkpoint that a run goes on from, every byte of it read; says what changes. None for a run from the start.

    Args:
        resume: ``auto``, ``never`` or a path.
        run: The run's folder.
        config: That it is to go on with.
        start: Where it would start.
        corpus: Its corpus.

    Raises:
        ConfigError: The run may not go on so.
        DataError: A checkpoint that is damaged, or was written in another layout or on another corpus.
    """
    folder = CheckpointFolder(run / "checkpoints")
    if resume == "never":
        latest = folder.latest()
        if latest is not None:
            raise ConfigError(
                f"{run} already holds a run, at step {latest.state.step}: give another --run, delete the "
                "folder, or go on from it with --resume auto"
            )
        return None
    if resume == "auto":
        checkpoint = folder.latest_sound()
    else:
        try:
            checkpoint = read_checkpoint(Path(resume).resolve())
            verify_checkpoint(checkpoint)
        except DataError as error:
            raise DataError(
                f"--resume {shown(resume, quote=False, limit=200)}: {error}; name another, such as "
                "RUN/checkpoints/step-00001000, or auto for the latest sound one"
            ) from None
        if checkpoint.path.parent != folder.path.resolve() and folder.latest() is not None:
            raise ConfigError(
                f"--resume {resume} is not of {run}, which holds checkpoints of its own: give another --run"
            )
    if checkpoint is not None:
        _check_same_place(checkpoint, config, start, corpus)
        old, new = _flat(read_config(checkpoint.bundle / "config.yaml")), _flat(config)
        _check_unchanged(checkpoint, old, new)
        for key in sorted(new):
            if old[key] != new[key]:
                before, now = json.dumps(old[key]), json.dumps(new[key])
                logger.warning("from update %d on %s is %s; it was %s", checkpoint.state.step + 1, key, now, before)
    return checkpoint


def _check_same_place(checkpoint: Checkpoint, config: Config, start: TrainState, corpus: Path) -> None:
    theirs = checkpoint.state
    for name in ("world_size", "zero_stage", "precision"):
        before, now = getattr(theirs, name), getattr(start, name)
        if before != now:
            raise DataError(
                f"cannot resume from {checkpoint.path}: it was written with {name} {before}, "
                f"this run has {name} {now}; start it as before"
            )
    if theirs.corpus != start.corpus:
        raise DataError(
            f"cannot resume from {checkpoint.path}: it was trained on another corpus than {corpus} "
            "(other text, tokenizer or cleaning); name that one with --corpus, or start another run with another --run"
        )
    if theirs.step > config.training.max_updates:
        raise ConfigError(
            f"training.max_updates is {config.training.max_updates}, but {checkpoint.path} is further: raise it, "
            "or go on from an earlier checkpoint with --resume PATH"
        )


def _check_unchanged(checkpoint: Checkpoint, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in new:
        fixed = key.partition(".")[0] in FIXED_SECTIONS or key == "training.seed"
        if fixed and old[key] != new[key]:
            raise ConfigError(
                f"{key} is {new[key]}, but {checkpoint.path} was trained with {old[key]}: "
                f"set {key}={old[key]} to go on, or start another run with another --run"
            )


def _flat(config: Config) -> dict[str, Any]:
    """The values of a configuration by ``section.key``."""

    def iter_values() -> Iterator[tuple[str, Any]]:
        for section, values in config.model_dump().items():
            if isinstance(values, dict):
                yield from ((f"{section}.{key}", value) for key, value in values.items())
            else:
                yield section, values

    return dict(iter_values())


def warn_of_other_hardware(checkpoint: Checkpoint, now: Mapping[str, str]) -> None:
    """Say that a run goes on with other arithmetic than it was computed with."""
    before = open_bundle(checkpoint.bundle).provenance.get("hardware", now)
    if before != now:
        old, new = (", ".join(f"{name} {value}" for name, value in what.items()) for what in (before, now))
        logger.warning(
            "%s was computed with %s, this run goes on with %s: not to the last bit as one that never stopped",
            checkpoint.path, old, new,
        )  # fmt: skip
