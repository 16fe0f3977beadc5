"""Writes checkpoints in the background: takes a snapshot between two updates, and a thread writes it to disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstransformer.checkpoints.format import BUNDLE, STATE, Checkpoint, Snapshot, TrainState
from dstransformer.checkpoints.pieces import write_pieces
from dstransformer.checkpoints.retention import CheckpointFolder
from dstransformer.config import Config
from dstransformer.corpus import Tokenizer
from dstransformer.distributed.world import World
from dstransformer.errors import DIVERGED_ADVICE, DivergedError, StorageError
from dstransformer.evaluation import Score
from dstransformer.io.files import ROOM_ADVICE, file_sha256, storage_errors, sync_tree
from dstransformer.io.products import is_run
from dstransformer.model import save_bundle


@dataclass(frozen=True)
class _Pending:
    """A checkpoint being written. ``part`` resolves to the hashes of the files written by this rank."""

    state: TrainState
    score: Score | None
    interim: bool
    part: Future[dict[str, str]]


class Saver:
    """Writes the checkpoints of a run. Every rank has one, and its methods are collective.

    A thread on each rank writes that rank's part. The checkpoint becomes visible when all ranks have written theirs. If
    any rank fails, all ranks discard it.

    Args:
        folder: The folder of checkpoints.
        world: The process group.
        config: The configuration stored in the bundle.
        tokenizer: The tokenizer stored in the bundle.
        provenance: The provenance stored in the bundle.
        announce: Called on rank 0 with each checkpoint that becomes visible.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        world: World,
        config: Config,
        tokenizer: Tokenizer,
        provenance: Mapping[str, Any],
        announce: Callable[[Checkpoint], None],
    ) -> None:
        self._folder = folder
        self._world = world
        self._config = config
        self._tokenizer = tokenizer
        self._provenance = provenance
        self._announce = announce
        self._is_run = is_run(folder.path.parent)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: _Pending | None = None

    @property
    def is_writing(self) -> bool:
        """Whether this rank's part of a checkpoint is still being written."""
        return self._pending is not None and not self._pending.part.done()

    def begin(
        self, take_snapshot: Callable[[], Snapshot], state: TrainState, score: Score | None, *, interim: bool = False
    ) -> None:
        """Take a snapshot and start writing it.

        Args:
            take_snapshot: Copies the state of the engine; collective.
            state: The training state.
            score: The validation score of the weights; None if they were not evaluated.
            interim: Whether only a request to stop brings the checkpoint about.

        Raises:
            StorageError: The previous checkpoint could not be written, or the folder of this one not created.
        """
        self.finish()
        with self._world.collective_errors():
            if self._world.is_rank0:
                self._check_run_is_there()
                self._folder.begin(state.step)
        part = self._writer.submit(self._write_part, self._folder.partial_path(state.step), take_snapshot(), state.step)
        self._pending = _Pending(state, score, interim, part)

    def finish(self) -> bool:
        """Wait until all ranks have written the pending checkpoint, and make it visible.

        Returns:
            Whether there was one.

        Raises:
            StorageError: The checkpoint could not be written. The partial checkpoint is deleted.
            DivergedError: A weight is NaN or infinite. The partial checkpoint is deleted.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return False
        failure = pending.part.exception()
        try:
            self._world.raise_any(failure if isinstance(failure, Exception) else None)
            parts = self._world.gather(pending.part.result())
            with self._world.collective_errors():
                if self._world.is_rank0:
                    files = {name: digest for part in parts for name, digest in part.items()}
                    self._announce(self._folder.publish(pending.state, pending.score, files, interim=pending.interim))
        except Exception:
            if self._world.is_rank0:
                self._folder.discard(pending.state.step)
            raise
        return True

    def _check_run_is_there(self) -> None:
        """Refuse to write where the run folder was mounted before."""
        run = self._folder.path.parent
        with storage_errors(run):
            if self._is_run and not is_run(run):
                raise StorageError(f"cannot write {run}: it is not the run folder any more; mount it again")

    def _write_part(self, partial: Path, snapshot: Snapshot, step: int) -> dict[str, str]:
        with storage_errors(partial, full=ROOM_ADVICE):
            (partial / STATE).mkdir(exist_ok=True)  # no parents: rank 0 has made them, unless this disk is another
            written = write_pieces(partial / STATE, self._world.rank, snapshot.pieces)
            digests = {f"{STATE}/{name}": digest for name, digest in written.items()}
            snapshot.pieces.clear()  # the memory of the moments is not needed while the bundle is written
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
