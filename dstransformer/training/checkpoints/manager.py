"""The checkpoints of a run: when one is due, how it is written in the background, and what happens if the write fails.

A snapshot is taken between two updates, and a thread on each rank writes that rank's part. The checkpoint becomes
visible when all ranks have written theirs. If any rank fails, all ranks discard it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstransformer.config import Config
from dstransformer.data import Tokenizer
from dstransformer.distributed.supervision.session import Session
from dstransformer.errors import DIVERGED_ADVICE, DivergedError, StorageError, counted
from dstransformer.evaluation import Score
from dstransformer.io.files import ROOM_ADVICE, RetryPolicy, file_sha256, storage_errors, sync_tree
from dstransformer.io.products import kind_of
from dstransformer.model import save_bundle
from dstransformer.tracking.events import CheckpointSaved, SaveFailed, Tracker
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import BUNDLE, STATE, Checkpoint, Snapshot, TrainState
from dstransformer.training.checkpoints.shards import write_shards

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Pending:
    """A checkpoint being written. ``part`` resolves to the hashes of the files written by this rank."""

    state: TrainState
    score: Score | None
    interim: bool
    part: Future[dict[str, str]]


class CheckpointManager:
    """Writes, retries, keeps and finds the checkpoints of a run. Methods that write are collective.

    Args:
        folder: The folder of checkpoints.
        config: When checkpoints are due; also stored in their bundles.
        tokenizer: The tokenizer stored in the bundles.
        provenance: The provenance stored in the bundles.
        session: The process group, stop requests and monitoring.
        tracker: Receives an event for each checkpoint that becomes visible, and for each that could not be saved.

    Attributes:
        folder: The folder of checkpoints.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        config: Config,
        tokenizer: Tokenizer,
        provenance: Mapping[str, Any],
        session: Session,
        tracker: Tracker,
    ) -> None:
        self.folder = folder
        self._config = config
        self._tokenizer = tokenizer
        self._provenance = provenance
        self._session = session
        self._world = session.world
        self._tracker = tracker
        self._is_run = kind_of(folder.run) == "run"
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: _Pending | None = None
        self._newest: tuple[int, bool] | None = None  # step of the newest, maybe unfinished; has it a score?
        self._began = time.monotonic()  # when the newest was begun
        self._retry_at: float | None = None
        self._failure: StorageError | None = None
        self._has_saved = False

    def record_start(self, score: Score) -> None:
        """Store in the provenance of all bundles the validation score of the bundle that training started from."""
        scored = {"metric": score.name, "score": score.value, "signature": score.signature}
        self._provenance = {**self._provenance, "parent": {**self._provenance["parent"], **scored}}

    @property
    def start_score(self) -> Score | None:
        """That score, also after a resume; None if training started from random weights, or did not record it."""
        parent = self._provenance.get("parent") or {}
        return Score(parent["metric"], parent["score"], parent["signature"]) if "score" in parent else None

    @property
    def is_writing(self) -> bool:
        """Whether this rank's part of a checkpoint is still being written."""
        return self._pending is not None and not self._pending.part.done()

    @property
    def is_due(self) -> bool:
        """Whether the clock of this rank makes a checkpoint due: ``every_minutes``, or the next try after a failure."""
        now, minutes = time.monotonic(), self._config.checkpoint.every_minutes
        return (minutes > 0 and now - self._began >= 60.0 * minutes) or (
            self._retry_at is not None and now >= self._retry_at
        )

    def begin(
        self, take_snapshot: Callable[[], Snapshot], state: TrainState, score: Score | None, *, interim: bool = False
    ) -> None:
        """Take a snapshot and start writing it. If the write fails, a warning is logged, and it is tried again later.

        See :class:`Checkpoint` for ``score`` and ``interim``.

        Raises:
            DivergedError: A weight of the previous checkpoint is NaN or infinite.
        """
        self.finish()
        self._began, self._retry_at = time.monotonic(), None
        try:
            self._begin(take_snapshot, state, score, interim=interim)
        except StorageError as error:
            self._record_failure(state.step, error)

    def finish(self) -> None:
        """Complete the checkpoint that is being written, if any. If that fails, log a warning and try again later.

        Raises:
            DivergedError: A weight of it is NaN or infinite. The partial checkpoint is deleted.
        """
        pending = self._pending
        try:
            self._finish()
        except StorageError as error:
            assert pending is not None
            self._newest = None
            self._record_failure(pending.state.step, error)

    def save_last(self, take_snapshot: Callable[[], Snapshot], state: TrainState, score: Score | None) -> None:
        """Make sure that the checkpoint of the last update is complete and has its score.

        Raises:
            StorageError: The disk refused it several times.
            StopRequested: The run was stopped while it waited for the disk.
            DivergedError: A weight is NaN or infinite.
        """

        def attempt() -> None:
            try:
                if self._newest != (state.step, score is not None):
                    self._begin(take_snapshot, state, score)
                self._finish()
            except StorageError as error:
                self._newest, self._failure = None, error
                raise

        self.retry_policy(state.step).run("the last checkpoint", attempt)

    def raise_if_nothing_saved(self) -> None:
        """At a stop: check that this process has saved at least one of the checkpoints that it tried to save.

        Raises:
            StorageError: The disk has refused every checkpoint.
        """
        if self._failure is not None and not self._has_saved:
            raise self._failure

    def retry_policy(self, step: int) -> RetryPolicy:
        """The retry policy for the final writes of a run, after ``step`` updates. A stop request ends the waiting."""

        def on_failure(what: str, error: StorageError, left: int) -> None:
            self._tracker.emit(SaveFailed(step, what, str(error)))
            if left and self._world.is_rank0:
                logger.warning(
                    "%s could not be saved: %s; the run tries again in %g s, %s at most",
                    what, error, seconds, counted(left, "time"),
                )  # fmt: skip

        seconds = self._config.checkpoint.retry_seconds
        return RetryPolicy(seconds, self._session.wait, on_failure)

    def resume_from(self, checkpoint: Checkpoint) -> None:
        """Training continues from a checkpoint: delete later ones of this run."""
        self._restart(checkpoint)
        with self._world.collective_errors():
            if self._world.is_rank0 and self._is_own(checkpoint):
                self.folder.delete_after(checkpoint.state.step)

    def add_score(self, state: TrainState, score: Score | None, *, interim: bool) -> None:
        """Give the newest checkpoint, which was saved at a stop request, the score that its weights have got since.

        If the write fails, a warning is logged, and the checkpoint stays without a score. It is no longer ``interim``
        if an uninterrupted run would have saved it.
        """
        if self._newest != (state.step, False):
            return
        try:
            with self._world.collective_errors():
                if self._world.is_rank0 and (checkpoint := self.folder.latest()) is not None:
                    kept = checkpoint.interim and interim
                    self._announce(self.folder.amend(checkpoint, state, score, interim=kept))
            self._newest = (state.step, True)
        except StorageError as error:
            self._record_failure(state.step, error)

    def latest(self) -> Checkpoint | None:
        """The newest readable checkpoint, on rank 0; None if there is none, and on other ranks. Not collective."""
        readable = self.folder.checkpoints() if self._world.is_rank0 else []
        return readable[-1] if readable else None

    def roll_back_to(self, checkpoint: Checkpoint, state: TrainState) -> None:
        """Training continues from a checkpoint of this run with another state: store that in it, and delete later ones.

        If that fails, a warning is logged; the next checkpoint has that state.
        """
        self._restart(checkpoint)
        try:
            with self._world.collective_errors():
                if self._world.is_rank0:
                    self._announce(
                        self.folder.amend(checkpoint, state, checkpoint.named_score, interim=checkpoint.interim)
                    )
        except StorageError as error:
            self._record_failure(checkpoint.state.step, error)

    def _restart(self, checkpoint: Checkpoint) -> None:
        self._newest = (checkpoint.state.step, checkpoint.score is not None) if self._is_own(checkpoint) else None
        self._began = time.monotonic()

    def _is_own(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.path.resolve().parent == self.folder.path.resolve()

    def _record_failure(self, step: int, error: StorageError) -> None:
        """Warn that a checkpoint could not be saved, and try again after a while."""
        seconds = self._config.checkpoint.retry_seconds
        self._failure = error
        self._retry_at = time.monotonic() + seconds
        self._tracker.emit(SaveFailed(step, "checkpoint", str(error)))
        if self._world.is_rank0:
            logger.warning(
                "the checkpoint of update %d could not be saved: %s; training continues, and saves again in %g s or "
                "when the next checkpoint is due",
                step, error, seconds,
            )  # fmt: skip

    def _begin(
        self, take_snapshot: Callable[[], Snapshot], state: TrainState, score: Score | None, *, interim: bool = False
    ) -> None:
        """Take a snapshot and start writing it.

        Raises:
            StorageError: The folder of the checkpoint could not be created.
        """
        self._finish()
        with self._world.collective_errors():
            if self._world.is_rank0:
                run = self.folder.run
                with storage_errors(run):
                    if self._is_run and kind_of(run) != "run":
                        raise StorageError(f"cannot write {run}: it is no longer the run folder; mount its disk again")
                self.folder.begin(state.step)
        part = self._writer.submit(self._write_part, self.folder.partial_path(state.step), take_snapshot(), state.step)
        self._pending = _Pending(state, score, interim, part)
        self._newest = (state.step, score is not None)

    def _finish(self) -> None:
        """Wait until all ranks have written the pending checkpoint, if any, and make it visible.

        Raises:
            StorageError: The checkpoint could not be written. The partial checkpoint is deleted.
            DivergedError: A weight is NaN or infinite. The partial checkpoint is deleted.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        failure = pending.part.exception()
        try:
            self._world.raise_any(failure if isinstance(failure, Exception) else None)
            parts = self._world.gather(pending.part.result())
            with self._world.collective_errors():
                if self._world.is_rank0:
                    files = {name: digest for part in parts for name, digest in part.items()}
                    self._announce(self.folder.publish(pending.state, pending.score, files, interim=pending.interim))
        except Exception:
            if self._world.is_rank0:
                self.folder.discard(pending.state.step)
            raise
        self._has_saved = True

    def _announce(self, checkpoint: Checkpoint) -> None:
        """Report a complete checkpoint. Its manifest is not read again: the disk may have failed since."""
        sha256 = hashlib.sha256(checkpoint.manifest_text.encode()).hexdigest()
        self._tracker.emit(CheckpointSaved(checkpoint.path, sha256, checkpoint.state.step, checkpoint.score))

    def _write_part(self, partial: Path, snapshot: Snapshot, step: int) -> dict[str, str]:
        with storage_errors(partial, full=ROOM_ADVICE):
            (partial / STATE).mkdir(exist_ok=True)  # no parents: rank 0 has made them, unless this is another disk
            written = write_shards(partial / STATE, self._world.rank, snapshot.shards)
            digests = {f"{STATE}/{name}": digest for name, digest in written.items()}
            snapshot.shards.clear()  # the memory of the moments is not needed while the bundle is written
            if self._world.is_rank0:
                if not all(bool(weight.isfinite().all()) for weight in snapshot.weights.values()):
                    raise DivergedError(
                        f"training diverged: a weight is NaN or infinite at update {step}; {DIVERGED_ADVICE}"
                    )
                provenance = {**self._provenance, "step": step}
                save_bundle(partial / BUNDLE, snapshot.weights, self._config, self._tokenizer, provenance)
                sync_tree(partial / BUNDLE)
                bundle = (partial / BUNDLE).iterdir()
                digests |= {str(path.relative_to(partial)): file_sha256(path) for path in bundle}
            return digests
