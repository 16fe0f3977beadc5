"""The average of a run's last checkpoints (section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dstransformer.errors import DataError
from dstransformer.model import Bundle, open_bundle, save_bundle
from dstransformer.training.checkpoint import Checkpoint, CheckpointFolder
from dstransformer.training.storage import replace_folder


def average_run(run: Path, last: int, out: Path) -> list[Checkpoint]:
    """Average the weights of a run's newest checkpoints into a bundle; returns the checkpoints.

    Args:
        run: A run's folder.
        last: How many checkpoints.
        out: The bundle; one that is there already is replaced.

    Raises:
        DataError: The run has no such number of checkpoints, or ``out`` is there and is not a bundle.
    """
    if last < 1:
        raise DataError(f"--last {last}: at least one checkpoint is averaged")
    checkpoints = CheckpointFolder(run / "checkpoints").checkpoints()
    if not checkpoints:
        raise DataError(f"{run} holds no checkpoints: name the folder that `dst train --run` wrote")
    # What stays of the others, stays as one of the best: between it and the last ones some are gone.
    checkpoints = checkpoints[-open_bundle(checkpoints[-1].bundle).config.checkpoint.keep_last :]
    if len(checkpoints) < last:
        raise DataError(
            f"{run} has the last {len(checkpoints)} checkpoints, fewer than the {last} to average: lower --last, or "
            "keep more with checkpoint.keep_last"
        )
    if out.exists() and not (out / "model.safetensors").is_file():
        raise DataError(f"{out} is there already and is not a bundle: give another --out, or delete it")
    newest = checkpoints[-last:]
    _write_average(newest, out)
    return newest


def average_newest(folder: CheckpointFolder, last: int, out: Path) -> list[Checkpoint]:
    """Average up to ``last`` of the newest checkpoints, as many as there are; at the end of a run."""
    newest = folder.checkpoints()[-last:]
    _write_average(newest, out)
    return newest


def _write_average(checkpoints: Sequence[Checkpoint], out: Path) -> None:
    bundles = [open_bundle(checkpoint.bundle) for checkpoint in checkpoints]
    weights = average_weights(bundles)
    newest = bundles[-1]
    provenance: dict[str, Any] = {
        **newest.provenance,
        "averaged_steps": [checkpoint.state.step for checkpoint in checkpoints],
    }
    replace_folder(out, lambda folder: _save(folder, weights, newest, provenance))


def _save(folder: Path, weights: dict[str, Tensor], like: Bundle, provenance: dict[str, Any]) -> None:
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
