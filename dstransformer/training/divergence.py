"""Updates whose loss or gradient is not finite: which sentences they hold, and when they are too many."""

from __future__ import annotations

import numpy as np

from dstransformer.batching import Update, deal
from dstransformer.checkpoints.format import TrainState
from dstransformer.config import TrainingConfig
from dstransformer.distributed.world import World
from dstransformer.errors import DIVERGED_ADVICE, DivergedError
from dstransformer.tracking import NonfiniteUpdate, Rollback
from dstransformer.training.engine import Step


class BadUpdates:
    """The updates since the last return to a checkpoint whose loss or gradient was not finite.

    Args:
        config: How many of them may follow each other.
        precision: The training precision, for messages.
        world: The process group.

    Attributes:
        recorded: The updates.
    """

    def __init__(self, config: TrainingConfig, precision: str, world: World) -> None:
        self._config = config
        self._precision = precision
        self._world = world
        self.recorded: list[NonfiniteUpdate] = []

    def add(self, update: Update, number: int, done: Step, in_a_row: int) -> NonfiniteUpdate:
        """Find out which sentences such an update holds. Collective.

        Args:
            update: This rank's share of the update.
            number: Its number.
            done: What became of it on this rank.
            in_a_row: The number of such updates in a row, with this one.
        """
        numbers = deal(len(update.parts), self._world.rank, self._world.world_size)
        own = [part for part, is_finite in zip(numbers, done.parts.isfinite().tolist(), strict=True) if not is_finite]
        parts = sorted(part for found in self._world.gather(own) for part in found)
        pairs = np.sort(np.concatenate([update.parts[part] for part in parts or range(len(update.parts))])).tolist()
        place = update.position
        bad = NonfiniteUpdate(number, place.epoch, place.update, done.skipped, in_a_row, pairs, place.window)
        self.recorded.append(bad)
        return bad

    def check(self, number: int, in_a_row: int) -> None:
        """Check that the updates in a row that were not finite are no more than the budget.

        Raises:
            DivergedError: They are.
        """
        if in_a_row <= self._config.skip_budget:
            return
        at_the_end = ", and the loss scale cannot fall" if self._precision == "fp16" else ""
        bf16 = "use bf16, " if self._precision == "fp16" else ""
        raise DivergedError(
            f"training diverged: the losses or gradients of {in_a_row} updates in a row, up to {number}, are NaN or "
            f"infinite{at_the_end} (training.skip_budget is {self._config.skip_budget}); {bf16}{DIVERGED_ADVICE}"
        )


def describe_rollback(
    error: DivergedError, checkpoint: TrainState, diverged: TrainState, now: TrainState, bad: list[NonfiniteUpdate]
) -> Rollback:
    """Describe a return to a checkpoint.

    Args:
        error: Why training diverged.
        checkpoint: The state in the checkpoint.
        diverged: The state when training diverged.
        now: The state with which training goes on.
        bad: The updates since the last return that were not finite.
    """
    first, following = checkpoint.position, now.position
    return Rollback(
        number=now.setbacks.rollbacks,
        reason=str(error).partition(";")[0],
        diverged_at=diverged.step,
        step=checkpoint.step,
        skipped_range=((first.epoch, first.update), (following.epoch, following.update)),
        windows=(first.window, following.window),
        nonfinite_updates=[update for update in bad if update.step > checkpoint.step],
    )
