"""Resuming: finds the checkpoint, checks that the run fits it, and reports what changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dstransformer.checkpoints.format import Checkpoint, TrainState, read_checkpoint, verify_checkpoint
from dstransformer.checkpoints.retention import CheckpointFolder
from dstransformer.config import Config
from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.model import open_bundle

logger = logging.getLogger(__name__)

#: Sections that determine what an update computes. They must not change during a run.
FIXED_SECTIONS = ("model", "loss", "optimizer", "batch")
FIXED_KEYS = ("training.seed", "training.bpe_dropout")


def find_checkpoint(resume: str, run: Path, config: Config, start: TrainState, corpus: Path) -> Checkpoint | None:
    """Find and fully verify the checkpoint to resume from, and log which values change.

    Args:
        resume: ``auto``, ``never`` or a path.
        run: The run folder.
        config: The experiment.
        start: The initial state of this run, with its layout and corpus.
        corpus: The corpus folder, for messages.

    Returns:
        The checkpoint; None for a new run.

    Raises:
        ConfigError: The configuration does not fit the checkpoint.
        DataError: The checkpoint is damaged, or was written with a different layout or corpus.
    """
    folder = CheckpointFolder(run / "checkpoints")
    if resume == "never":
        latest = folder.latest()
        if latest is not None:
            raise ConfigError(
                f"{run} already holds a run, at step {latest.state.step}: choose another --run, delete the "
                "folder, or resume with --resume auto"
            )
        _check_without_checkpoints(run, "never")
        return None
    if resume == "auto":
        checkpoint = folder.latest_valid()
        if checkpoint is None:
            _check_without_checkpoints(run, "auto")
    else:
        try:
            checkpoint = read_checkpoint(Path(resume).resolve())
            verify_checkpoint(checkpoint)
        except DataError as error:
            raise DataError(
                f"--resume {shown(resume, quote=False, limit=200)}: {error}; name another, such as "
                "RUN/checkpoints/step-00001000, or auto for the latest valid one"
            ) from None
        if checkpoint.path.parent != folder.path.resolve() and folder.latest() is not None:
            raise ConfigError(
                f"--resume {resume} is not a checkpoint of {run}, which has its own: choose another --run"
            )
    if checkpoint is not None:
        _check_layout(checkpoint, config, start, corpus)
        old, new = _flatten(open_bundle(checkpoint.bundle).training_config()), _flatten(config)
        _check_fixed_values(checkpoint, old, new)
        for key in sorted(new):
            if old[key] != new[key]:
                before, now = json.dumps(old[key]), json.dumps(new[key])
                logger.warning("from update %d on %s is %s; it was %s", checkpoint.state.step + 1, key, now, before)
    return checkpoint


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
            "--run, move the old one, or start anew in it with --resume auto"
        )


def _how_to_have(different: Sequence[str], stored: TrainState) -> str:
    """How to start a run with the layout of a checkpoint."""
    advice = []
    if "world_size" in different:
        count = stored.world_size
        advice.append(
            f"start {count} processes with deepspeed --num_gpus {count}, torchrun or srun; for a dry run set "
            f"WORLD_SIZE={count}"
        )
    if "zero_stage" in different or "precision" in different:
        advice.append(f"give --ds zero{stored.zero_stage} {stored.precision}")
    return "; ".join(advice)


def _check_layout(checkpoint: Checkpoint, config: Config, start: TrainState, corpus: Path) -> None:
    stored = checkpoint.state
    names = ("world_size", "zero_stage", "precision")
    before, now = ({name: getattr(state, name) for name in names} for state in (stored, start))
    different = [name for name in names if before[name] != now[name]]
    if different:
        had, have = (" and ".join(f"{name} {state[name]}" for name in different) for state in (before, now))
        advice = _how_to_have(different, stored)
        raise DataError(
            f"cannot resume from {checkpoint.path}: it was written with {had}, this run has {have}; {advice}"
        )
    if stored.corpus != start.corpus:
        raise DataError(
            f"cannot resume from {checkpoint.path}: it was trained on another corpus than {corpus} "
            "(different text, tokenizer or cleaning); give that corpus with --corpus, or start a new run with another "
            "--run"
        )
    if stored.step > config.training.max_updates:
        raise ConfigError(
            f"training.max_updates is {config.training.max_updates}, but {checkpoint.path} is further: raise it, "
            "or resume from an earlier checkpoint with --resume PATH"
        )


def _check_fixed_values(checkpoint: Checkpoint, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in new:
        fixed = key.partition(".")[0] in FIXED_SECTIONS or key in FIXED_KEYS
        if fixed and old[key] != new[key]:
            raise ConfigError(
                f"{key} is {new[key]}, but {checkpoint.path} was trained with {old[key]}: "
                f"set {key}={old[key]} to resume, or start a new run with another --run"
            )


def _flatten(config: Config) -> dict[str, Any]:
    """All values of a configuration by ``section.key``."""

    def iter_values() -> Iterator[tuple[str, Any]]:
        for section, values in config.model_dump().items():
            if isinstance(values, dict):
                yield from ((f"{section}.{key}", value) for key, value in values.items())
            else:
                yield section, values

    return dict(iter_values())


def warn_if_hardware_differs(checkpoint: Checkpoint, now: Mapping[str, str]) -> None:
    """Warn that the run resumes on different hardware, where results differ in the last bits."""
    before = open_bundle(checkpoint.bundle).provenance.get("hardware", now)
    if before != now:
        old, new = (", ".join(f"{name} {value}" for name, value in what.items()) for what in (before, now))
        logger.warning(
            "%s was computed with %s, this run resumes with %s: results may differ in the last bits",
            checkpoint.path, old, new,
        )  # fmt: skip
