"""Updates whose loss or gradient is not finite, and rollbacks to a checkpoint when there are too many of them."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from dstransformer.config import Precision, TrainingConfig
from dstransformer.data.loader import Update
from dstransformer.data.plan import deal
from dstransformer.distributed.supervision.session import Session
from dstransformer.errors import DIVERGED_ADVICE, DivergedError
from dstransformer.tracking.events import NonfiniteUpdate, Rollback, Tracker
from dstransformer.training.checkpoints.format import Checkpoint, RecoveryState, TrainState
from dstransformer.training.checkpoints.manager import CheckpointManager
from dstransformer.training.engine import Step


@dataclass(eq=False)
class Recovery:
    """Counts non-finite updates, and finds the checkpoint to go back to when training diverges. Collective.

    Attributes:
        config: How many non-finite updates may follow each other, and how many rollbacks a run may have.
        precision: The training precision, for messages.
        checkpoints: The checkpoints of the run.
        session: The process group, stop requests and monitoring.
        tracker: Receives an event for each non-finite update and each rollback.
        state: What happened so far, stored in checkpoints.
    """

    config: TrainingConfig
    precision: Precision
    checkpoints: CheckpointManager
    session: Session
    tracker: Tracker
    state: RecoveryState = field(default_factory=RecoveryState, init=False)
    _updates: list[NonfiniteUpdate] = field(default_factory=list, init=False)  # since the last rollback

    def record(self, number: int, update: Update, result: Step, *, nonfinite: bool) -> None:
        """Record this rank's share of an update, the loss of which is or is not ``nonfinite`` on some rank.

        Raises:
            DivergedError: More than ``training.skip_budget`` updates in a row were not finite.
        """
        is_finite = result.lowers_scale if result.skipped else not nonfinite
        consecutive = 0 if is_finite else self.state.consecutive_nonfinite + 1
        self.state = replace(self.state, consecutive_nonfinite=consecutive)
        if not is_finite:
            self._record_nonfinite(number, update, result)
        if consecutive > (budget := self.config.skip_budget):
            at_the_end = ", and the loss scale cannot fall" if self.precision == "fp16" else ""
            bf16 = "use bf16, " if self.precision == "fp16" else ""
            raise DivergedError(
                f"training diverged: the losses or gradients of {consecutive} updates in a row, up to {number}, are "
                f"NaN or infinite{at_the_end} (training.skip_budget is {budget}); {bf16}{DIVERGED_ADVICE}"
            )

    def roll_back(self, error: DivergedError, diverged: TrainState) -> Checkpoint:
        """Find the last good checkpoint. Training continues from it with the data after the update that diverged.

        The updates between them are skipped: computed again, they would diverge again.

        Returns:
            The checkpoint, with position, cost and recovery state replaced.

        Raises:
            DivergedError: ``training.max_rollbacks`` is reached, or there is no checkpoint to go back to.
        """
        self.session.report(diverged.step, "going back to a checkpoint")
        with suppress(DivergedError):
            self.checkpoints.finish()
        checkpoint: Checkpoint | None = None
        if self.state.rollbacks < self.config.max_rollbacks:
            folder, last = self.checkpoints.folder, self.state.rollback_step
            checkpoint = self.session.world.compute_on_rank0(lambda: folder.latest_finite(other_than=last))
        if checkpoint is None:
            raise error
        step = checkpoint.state.step
        recovery = RecoveryState(0, self.state.rollbacks + 1, step)
        state = replace(checkpoint.state, position=diverged.position, cost=diverged.cost, recovery=recovery)
        first, following = checkpoint.state.position, state.position
        self.tracker.emit(
            Rollback(
                number=state.recovery.rollbacks,
                reason=str(error).partition(";")[0],
                diverged_at=diverged.step,
                step=step,
                skipped_range=((first.epoch, first.update), (following.epoch, following.update)),
                windows=(first.window, following.window),
                nonfinite_updates=[update for update in self._updates if update.step > step],
            )
        )
        self.checkpoints.roll_back_to(checkpoint, state)
        self._updates.clear()
        return replace(checkpoint, state=state)

    def _record_nonfinite(self, number: int, update: Update, result: Step) -> None:
        """Report the pairs of the micro-batches that are not finite."""
        numbers = deal(len(update.pairs), self.session.world.rank, self.session.world.world_size)
        finite = result.parts.isfinite().tolist()
        of_rank = [part for part, is_finite in zip(numbers, finite, strict=True) if not is_finite]
        parts = sorted(itertools.chain(*self.session.world.gather(of_rank)))
        pairs = np.sort(np.concatenate([update.pairs[part] for part in parts or range(len(update.pairs))])).tolist()
        position, consecutive = update.position, self.state.consecutive_nonfinite
        event = NonfiniteUpdate(
            number, position.epoch, position.update, result.skipped, consecutive, pairs, position.window
        )
        self._updates.append(event)
        self.tracker.emit(event)
