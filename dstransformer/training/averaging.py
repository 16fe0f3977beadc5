"""The average of a run's checkpoints (section 6.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
        last: How many of the newest checkpoints; None for ``checkpoint.average_last``, fewer where there are fewer
            past the warm-up.
        best: How many of those with the highest validation scores, instead.
        include_warmup: Take checkpoints from before the end of the warm-up as well.
        overwrite: Replace a bundle that is there already.

    Raises:
        DataError: The run has no such number of checkpoints, one of them is damaged, or ``out`` is no place for a
            bundle.
    """
    option, number = ("--last", last) if best is None else ("--best", best)
    if number is not None and number < 1:
        raise DataError(f"{option} {number}: at least one checkpoint is averaged")
    checkpoints = CheckpointFolder(run / "checkpoints").checkpoints()
    if not checkpoints:
        raise DataError(f"{run} holds no checkpoints: name the folder that `dst train --run` wrote")
    check_bundle_folder(out, "--out", overwrite=overwrite)
    with _sparing_the_others():
        config = open_bundle(checkpoints[-1].bundle).config
    warmup_steps = 0 if include_warmup else config.schedule.warmup_steps
    # What stays of the others, stays as one of the best: between it and the last ones some are gone.
    newest = checkpoints[-config.checkpoint.keep_last :]
    if best is not None:
        chosen = _best(run, checkpoints, best, warmup_steps)
    elif last is not None:
        chosen = _newest(run, newest, last, warmup_steps)
    else:
        chosen = past_warmup(newest[-config.checkpoint.average_last :], warmup_steps)
        if not chosen:
            raise DataError(
                f"no checkpoint of {run} is past its warm-up (schedule.warmup_steps = {warmup_steps}): train longer, "
                "or average the earlier ones with --include-warmup"
            )
    with _sparing_the_others():
        write_average(chosen, out)
    return chosen


@contextmanager
def _sparing_the_others() -> Iterator[None]:
    """Add to what is wrong with one checkpoint how the others can be averaged."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; or move that checkpoint out of the run to average the others") from None


def past_warmup(checkpoints: Sequence[Checkpoint], warmup_steps: int) -> list[Checkpoint]:
    """Those from the end of the warm-up on: while the rate rises, weights move too far for their mean to be a model."""
    return [checkpoint for checkpoint in checkpoints if checkpoint.state.step >= warmup_steps]


def _newest(run: Path, newest: Sequence[Checkpoint], number: int, warmup_steps: int) -> list[Checkpoint]:
    if len(newest) < number:
        raise DataError(
            f"--last {number}: {run} keeps only its newest {_count(len(newest))}: lower --last, or keep more with "
            "checkpoint.keep_last"
        )
    chosen = past_warmup(newest[-number:], warmup_steps)
    if len(chosen) < number:
        raise DataError(
            f"--last {number}: {len(chosen)} of the newest {_count(number)} of {run} lie past its warm-up "
            f"(schedule.warmup_steps = {warmup_steps}): lower --last, or average the earlier ones as well with "
            "--include-warmup"
        )
    return chosen


def _best(run: Path, checkpoints: Sequence[Checkpoint], number: int, warmup_steps: int) -> list[Checkpoint]:
    scored = by_score(checkpoints)
    best = past_warmup(scored, warmup_steps)
    if len(best) < number:
        early = len(scored) - len(best)
        aside = f" ({early} more from before the end of its warm-up: --include-warmup)" if early else ""
        raise DataError(
            f"--best {number}: {run} has {_count(len(best))} with a validation score{aside}: lower --best, or keep "
            "more with checkpoint.keep_best"
        )
    return sorted(best[:number], key=lambda checkpoint: checkpoint.state.step)


def _count(checkpoints: int) -> str:
    return "1 checkpoint" if checkpoints == 1 else f"{checkpoints} checkpoints"


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
