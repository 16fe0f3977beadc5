"""Averages the checkpoints of a run (section 6.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstransformer.errors import DataError, counted
from dstransformer.io.files import replace_folder
from dstransformer.io.products import check_bundle_folder
from dstransformer.model import Bundle, open_bundle, save_bundle
from dstransformer.training.checkpoints.checkpoint_folder import (
    CheckpointFolder,
    past_warmup,
    rank_by_score,
    select_newest,
)
from dstransformer.training.checkpoints.format import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor

_FULL_ADVICE = "make room, or choose another folder, then give the same command again"


def average_run(
    run: Path,
    out: Path,
    *,
    last: int | None = None,
    best: int | None = None,
    steps: Sequence[int] | None = None,
    include_warmup: bool = False,
    overwrite: bool = False,
) -> list[Checkpoint]:
    """Average the weights of a run's newest, best or named checkpoints into a bundle.

    Args:
        run: The run folder.
        out: The folder of the bundle.
        last: How many of the newest checkpoints to average. None means ``checkpoint.average_last``, or fewer if fewer
            are past the warm-up.
        best: How many of the checkpoints with the highest validation scores to average, instead of the newest.
        steps: The steps of the checkpoints to average, wherever the warm-up ends, instead of the newest.
        include_warmup: Also use checkpoints from before the end of the warm-up.
        overwrite: Replace an existing bundle.

    Returns:
        The averaged checkpoints, oldest first.

    Raises:
        DataError: The run has too few checkpoints or lacks a named one, one is damaged, or ``out`` cannot be written.
    """
    option, number = ("--last", last) if best is None else ("--best", best)
    if number is not None and number < 1:
        raise DataError(f"{option} {number}: average at least one checkpoint")
    folder = CheckpointFolder(run / "checkpoints")
    written, checkpoints = folder.steps(), folder.checkpoints()
    if not checkpoints:
        damaged = f"every checkpoint in {folder.path} is damaged: restore one of them"
        raise DataError(damaged if written else f"{run} has no checkpoints: name a folder that `dst train --run` wrote")
    check_bundle_folder(out, "--out", overwrite=overwrite)
    with _suggest_other_checkpoints():
        config = open_bundle(checkpoints[-1].bundle).training_config()
    warmup_steps = 0 if include_warmup else config.schedule.warmup_steps
    if steps is not None:
        chosen = _choose_named(run, checkpoints, steps)
    elif best is not None:
        chosen = _choose_best(run, checkpoints, best, warmup_steps)
    elif last is not None:
        # Older checkpoints were kept only for their score and need not be consecutive.
        newest = select_newest(checkpoints, written, config.checkpoint.keep_last)
        chosen = _choose_newest(run, newest, last, warmup_steps)
    else:
        chosen = past_warmup(select_newest(checkpoints, written, config.checkpoint.average_last), warmup_steps)
        if not chosen:
            raise DataError(
                f"no checkpoint of {run} is past its warm-up (schedule.warmup_steps = {warmup_steps}): train longer, "
                "or include earlier ones with --include-warmup"
            )
    with _suggest_other_checkpoints():
        bundles = [open_bundle(checkpoint.bundle) for checkpoint in chosen]
        record = {"averaged_steps": [checkpoint.state.step for checkpoint in chosen]}
        write_average(bundles, out, record, overwrite=overwrite, full=_FULL_ADVICE)
    return chosen


@contextmanager
def _suggest_other_checkpoints() -> Iterator[None]:
    """Add to an error about one checkpoint how to average the others."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; or move that checkpoint out of the run to average the others") from None


def _choose_named(run: Path, checkpoints: Sequence[Checkpoint], steps: Sequence[int]) -> list[Checkpoint]:
    by_step = {checkpoint.state.step: checkpoint for checkpoint in checkpoints}
    for step in steps:
        if step not in by_step:
            there = ", ".join(map(str, by_step))
            raise DataError(f"--steps {step}: {run} has no checkpoint of that step, only of {there}")
        if steps.count(step) > 1:
            raise DataError(f"--steps {step} is given {steps.count(step)} times: name each checkpoint once")
    return [by_step[step] for step in sorted(steps)]


def _choose_newest(run: Path, newest: Sequence[Checkpoint], number: int, warmup_steps: int) -> list[Checkpoint]:
    if len(newest) < number:
        raise DataError(
            f"--last {number}: {run} has only its newest {counted(len(newest), 'checkpoint')}: lower --last "
            "(checkpoint.keep_last sets how many a run keeps)"
        )
    chosen = past_warmup(newest[-number:], warmup_steps)
    if len(chosen) < number:
        advice = f"lower --last to {len(chosen)}" if chosen else "train longer"
        raise DataError(
            f"--last {number}: {len(chosen)} of the newest {counted(number, 'checkpoint')} of {run} are past its "
            f"warm-up (schedule.warmup_steps = {warmup_steps}): {advice}, or include earlier ones with --include-warmup"
        )
    return chosen


def _choose_best(run: Path, checkpoints: Sequence[Checkpoint], number: int, warmup_steps: int) -> list[Checkpoint]:
    scored = rank_by_score(checkpoints)
    best = past_warmup(scored, warmup_steps)
    if len(best) < number:
        early = len(scored) - len(best)
        excluded = f" ({early} more from before the end of its warm-up: --include-warmup)" if early else ""
        raise DataError(
            f"--best {number}: {run} has {counted(len(best), 'checkpoint')} with a validation score{excluded}: "
            "lower --best; to have more, validate before each checkpoint (validation.every) and raise "
            "checkpoint.keep_best"
        )
    return sorted(best[:number], key=lambda checkpoint: checkpoint.state.step)


def write_average(
    bundles: Sequence[Bundle], out: Path, extra_provenance: Mapping[str, Any], *, overwrite: bool = True, full: str
) -> None:
    """Write a bundle with average weights. An existing bundle is replaced once the new one is complete.

    Args:
        bundles: Those of one run, oldest first. The weights of a single one are written unchanged.
        out: The folder of the bundle.
        extra_provenance: Entries to add to the provenance of the newest.
        overwrite: Whether the bundle may exist.
        full: What to do about a full disk.
    """
    weights, newest = average_weights(bundles), bundles[-1]
    config, provenance = newest.training_config(), {**newest.provenance, **extra_provenance}

    def write(folder: Path) -> None:
        save_bundle(folder, weights, config, newest.tokenizer, provenance)

    replace_folder(out, write, overwrite=overwrite, full=full)


def average_weights(bundles: Sequence[Bundle]) -> dict[str, Tensor]:
    """The mean of each weight in fp32, summed in fp64. Loads one bundle at a time.

    Raises:
        DataError: The bundles have different architectures.
    """
    sums: dict[str, Tensor] = {}
    for bundle in bundles:
        weights = bundle.load_weights()
        if sums and {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in sums.items()}:
            raise DataError(
                f"{bundle.path} and {bundles[0].path} have different architectures: average checkpoints of one run"
            )
        for name, weight in weights.items():
            sums[name] = sums[name].add_(weight) if name in sums else weight.double()
    return {name: (total / len(bundles)).float() for name, total in sums.items()}
