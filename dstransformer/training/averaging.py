"""The average of a run's checkpoints (section 6.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dstransformer.errors import DataError
from dstransformer.model import Bundle, open_bundle, save_bundle
from dstransformer.training.checkpoint import Checkpoint, CheckpointFolder, by_score
from dstransformer.training.folders import check_bundle_folder
from dstransformer.training.storage import replace_folder


def average_run(
    run: Path,
    out: Path,
    *,
    last: int | None = None,
    best: int | None = None,
    include_warmup: bool = False,
    overwrite: bool = False,
) -> list[Checkpoint]:
    """Average the weights of a run's newest or best checkpoints into a bundle; returns them, oldest first.

    Args:
        run: A run's folder.
        out: The bundle.
        last: How many of the newest checkpoints.
        best: How many of those with the highest validation scores, instead.
        include_warmup: Take checkpoints from before the end of the warm-up as well.
        overwrite: Replace a bundle that is there already.

    Raises:
        DataError: The run has no such number of checkpoints, or ``out`` is no place for a bundle.
    """
    option, number = ("--last", last) if best is None else ("--best", best)
    if number is None or number < 1:
        raise DataError(f"{option} {number}: at least one checkpoint is averaged")
    checkpoints = CheckpointFolder(run / "checkpoints").checkpoints()
    if not checkpoints:
        raise DataError(f"{run} holds no checkpoints: name the folder that `dst train --run` wrote")
    check_bundle_folder(out, "--out", overwrite=overwrite)
    config = open_bundle(checkpoints[-1].bundle).config
    warmup_steps = 0 if include_warmup else config.schedule.warmup_steps
    if best is None:
        chosen = _newest(run, checkpoints, number, config.checkpoint.keep_last, warmup_steps)
    else:
        chosen = _best(run, checkpoints, number, warmup_steps)
    write_average(chosen, out)
    return chosen


def past_warmup(checkpoints: Sequence[Checkpoint], warmup_steps: int) -> list[Checkpoint]:
    """Those from the end of the warm-up on: while the rate rises, weights move too far for their mean to be a model."""
    return [checkpoint for checkpoint in checkpoints if checkpoint.state.step >= warmup_steps]


def _newest(
    run: Path, checkpoints: Sequence[Checkpoint], number: int, keep_last: int, warmup_steps: int
) -> list[Checkpoint]:
    # What stays of the others, stays as one of the best: between it and the last ones some are gone.
    newest = checkpoints[-keep_last:]
    if len(newest) < number:
        raise DataError(
            f"{run} has the last {len(newest)} checkpoints, fewer than the {number} to average: lower --last, or "
            "keep more with checkpoint.keep_last"
        )
    chosen = past_warmup(newest[-number:], warmup_steps)
    if len(chosen) < number:
        raise DataError(
            f"only {len(chosen)} of the last {number} checkpoints of {run} are past its warm-up (schedule.warmup_steps "
            f"= {warmup_steps}): lower --last, or average the earlier ones as well with --include-warmup"
        )
    return chosen


def _best(run: Path, checkpoints: Sequence[Checkpoint], number: int, warmup_steps: int) -> list[Checkpoint]:
    scored = by_score(checkpoints)
    best = past_warmup(scored, warmup_steps)
    if len(best) < number:
        early = len(scored) - len(best)
        aside = f" ({early} more from before the end of its warm-up: --include-warmup)" if early else ""
        raise DataError(
            f"{run} has {len(best)} checkpoints with a validation score{aside}, fewer than the {number} to average: "
            "lower --best, or keep more with checkpoint.keep_best"
        )
    return sorted(best[:number], key=lambda checkpoint: checkpoint.state.step)


def write_average(checkpoints: Sequence[Checkpoint], out: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write a bundle of the mean of checkpoints, oldest first; what it replaces stays until it is complete.

    Args:
        checkpoints: Of one run; of a single one the bundle holds the same weights.
        out: The bundle.
        more: Entries of the provenance beside ``averaged_steps``.
    """
    bundles = [open_bundle(checkpoint.bundle) for checkpoint in checkpoints]
    weights = average_weights(bundles)
    newest = bundles[-1]
    steps = [checkpoint.state.step for checkpoint in checkpoints]
    provenance = {**newest.provenance, "averaged_steps": steps, **(more or {})}
    replace_folder(out, lambda folder: _save(folder, weights, newest, provenance))


def annotate_bundle(source: Path, out: Path, more: Mapping[str, Any]) -> None:
    """Write a bundle once more, with further entries in its provenance."""
    bundle = open_bundle(source)
    weights = bundle.load_weights()
    replace_folder(out, lambda folder: _save(folder, weights, bundle, {**bundle.provenance, **more}))


def _save(folder: Path, weights: dict[str, Tensor], like: Bundle, provenance: Mapping[str, Any]) -> None:
    save_bundle(folder, weights, like.config, like.tokenizer, provenance)


def average_weights(bundles: Sequence[Bundle]) -> dict[str, Tensor]:
    """The mean of each weight, summed in fp64 and given in fp32; one bundle in memory at a time.

    Raises:
        DataError: The bundles are not of one architecture.
    """
    sums: dict[str, Tensor] = {}
    for bundle in bundles:
        weights = bundle.load_weights()
        if sums and {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in sums.items()}:
            raise DataError(f"{bundle.path} is of another architecture than {bundles[0].path}: they cannot be averaged")
        for name, weight in weights.items():
            sums[name] = sums[name].add_(weight) if name in sums else weight.double()
    return {name: (total / len(bundles)).to(torch.float32) for name, total in sums.items()}
