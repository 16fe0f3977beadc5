"""The candidates for the final bundle of a run: the average of its last checkpoints, the last one, and the best one.

The paper averages the last checkpoints (section 6.1). In a short run the average may include models from the warm-up
and be far worse than the last checkpoint, so all candidates are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstransformer.config import Config
from dstransformer.io.files import ROOM_ADVICE, storage_errors
from dstransformer.model import open_bundle
from dstransformer.training.checkpoints.averaging import annotate_bundle, write_average
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import Checkpoint
from dstransformer.training.checkpoints.selection import past_warmup, rank_by_score, select_newest

Steps = tuple[int, ...]


@dataclass(frozen=True)
class Candidates:
    """The candidates for the final bundle.

    Attributes:
        checkpoints: The checkpoints of each candidate, oldest first, by name: ``average``, ``last`` or ``best``. There
            is no average if no checkpoint is past the warm-up.
        all_past_warmup: Whether the whole window of the average (the last ``average_last`` checkpoints, or fewer if
            the run has fewer) is past the warm-up.
        known: Scores that need not be computed again, by the steps of the candidate.
        average: The folder for the bundle of the average, if it averages several checkpoints.
    """

    checkpoints: dict[str, list[Checkpoint]]
    all_past_warmup: bool
    known: dict[Steps, float]
    average: Path

    def steps(self, name: str) -> Steps:
        """The steps of a candidate's checkpoints."""
        return tuple(checkpoint.state.step for checkpoint in self.checkpoints[name])

    def bundle(self, name: str) -> Path:
        """The bundle with a candidate's weights."""
        members = self.checkpoints[name]
        return self.average if len(members) > 1 else members[0].bundle

    def write(self, name: str, out: Path, provenance: Mapping[str, Any]) -> None:
        """Write a candidate as a bundle, with more entries in its provenance.

        Raises:
            StorageError: It cannot be written.
        """
        if len(self.checkpoints[name]) > 1:
            annotate_bundle(self.average, out, provenance, full=ROOM_ADVICE)
        else:
            write_average(self.checkpoints[name], out, provenance, full=ROOM_ADVICE)


def find_candidates(
    checkpoints: Sequence[Checkpoint],
    steps: Iterable[int],
    config: Config,
    is_known: Callable[[Checkpoint], bool],
    average: Path,
) -> Candidates:
    """Find the candidates among the checkpoints of a run.

    Args:
        checkpoints: The intact checkpoints of the run, oldest first; at least one.
        steps: The updates of all its checkpoints, damaged ones included.
        config: The configuration of the run.
        is_known: Whether a checkpoint's score was computed on the same sentences with the same search.
        average: The folder for the bundle of the average.
    """
    window = select_newest(checkpoints, steps, config.checkpoint.average_last)
    averaged = past_warmup(window, config.schedule.warmup_steps)
    found = {"average": averaged, "last": [checkpoints[-1]], "best": rank_by_score(checkpoints)[:1]}
    candidates = {name: list(members) for name, members in found.items() if members}
    singles = {members[0].state.step: members[0] for members in candidates.values() if len(members) == 1}
    known: dict[Steps, float] = {(step,): c.score for step, c in singles.items() if c.score is not None and is_known(c)}
    return Candidates(candidates, len(averaged) == len(window), known, average)


def prepare_candidates(
    folder: CheckpointFolder, config: Config, metric: str, signature: str, average: Path
) -> Candidates:
    """Find the candidates among the intact checkpoints of a run, and write the average.

    Args:
        folder: The checkpoints.
        config: The configuration of the run.
        metric: The name of the score that compares them.
        signature: Its signature.
        average: The folder for the bundle of the average; need not exist.

    Raises:
        DataError: All checkpoints are damaged.
        StorageError: There are none, one cannot be read now, or the average cannot be written.
    """

    def is_known(checkpoint: Checkpoint) -> bool:
        same_search = open_bundle(checkpoint.bundle).decoding == config.decoding
        return same_search and (checkpoint.metric, checkpoint.signature) == (metric, signature)

    steps = folder.steps()
    found = find_candidates(folder.intact(), steps, config, is_known, average)
    members = found.checkpoints.get("average", ())
    if len(members) > 1:
        with storage_errors(average, full=ROOM_ADVICE):
            write_average(members, average, full=ROOM_ADVICE)
    return found
