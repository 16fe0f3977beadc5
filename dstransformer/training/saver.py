"""Checkpoints written while training goes on: a copy is taken between two updates, a thread brings it to the disk."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dstransformer.config import Config
from dstransformer.corpus import Tokenizer
from dstransformer.corpus.manifest import file_sha256
from dstransformer.model import save_bundle
from dstransformer.training.checkpoint import BUNDLE, ENGINE, Checkpoint, CheckpointFolder, Score, TrainState
from dstransformer.training.engine import ADVICE, DivergedError, Engine, Snapshot
from dstransformer.training.storage import storage_errors, sync_tree, write_durably
from dstransformer.training.world import World


@dataclass(frozen=True)
class _Pending:
    """A checkpoint whose parts are being written; ``part`` is this rank's, with the hash of each of its files."""

    state: TrainState
    score: Score | None
    part: Future[dict[str, str]]


class Saver:
    """Writes the checkpoints of a run. Every rank holds one; its methods are collective.

    A checkpoint is begun, written by every rank in its own thread, and finished: it becomes visible when every rank
    has written its part, or is given up by all where one could not.

    Args:
        folder: Where they go.
        world: The processes.
        config: For the bundle.
        tokenizer: For the bundle.
        provenance: For the bundle.
        announce: Called by rank 0 with a checkpoint that has become visible.
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
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: _Pending | None = None

    @property
    def is_writing(self) -> bool:
        """Whether this rank's part of a checkpoint is still on its way to the disk."""
        return self._pending is not None and not self._pending.part.done()

    def begin(self, engine: Engine, state: TrainState, score: Score | None) -> None:
        """Copy the state of this moment, and start writing it.

        Raises:
            StorageError: The one before, or the folder of this one, could not be written.
        """
        self.finish()
        with self._world.together():
            if self._world.is_first:
                self._folder.begin(state.step)
        snapshot = engine.snapshot()
        part = self._writer.submit(self._write_part, self._folder.aside(state.step), snapshot, state.step)
        self._pending = _Pending(state, score, part)

    def finish(self) -> None:
        """Wait until all ranks have written the checkpoint that was begun, and make it visible.

        Raises:
            StorageError: It could not be written; nothing that is not complete stays.
            DivergedError: A weight is NaN or infinite; likewise.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        failure = pending.part.exception()
        try:
            self._world.share(failure if isinstance(failure, Exception) else None)
            parts = self._world.gather(pending.part.result())
            with self._world.together():
                if self._world.is_first:
                    files = {name: digest for part in parts for name, digest in part.items()}
                    self._announce(self._folder.publish(pending.state, pending.score, files))
        except Exception:
            if self._world.is_first:
                self._folder.discard(pending.state.step)
            raise

    def _write_part(self, partial: Path, snapshot: Snapshot, step: int) -> dict[str, str]:
        with storage_errors(partial):
            digests = {}
            while snapshot.states:
                name, state = snapshot.states.popitem()
                path = partial / ENGINE / name
                path.parent.mkdir(parents=True, exist_ok=True)
                digests[str(path.relative_to(partial))] = _write_state(path, state)
            if self._world.is_first:
                if not all(bool(weight.isfinite().all()) for weight in snapshot.weights.values()):
                    raise DivergedError(f"training diverged: a weight is NaN or infinite at update {step}; {ADVICE}")
                provenance = {**self._provenance, "step": step}
                save_bundle(partial / BUNDLE, snapshot.weights, self._config, self._tokenizer, provenance)
                sync_tree(partial / BUNDLE)
                bundle = (partial / BUNDLE).iterdir()
                digests |= {str(path.relative_to(partial)): file_sha256(path) for path in bundle}
            return digests


def _write_state(path: Path, state: Any) -> str:
    """Write what DeepSpeed keeps, and return its hash. In memory first: a full disk is then the file system's error."""
    content = io.BytesIO()
    torch.save(state, content)
    write_durably(path, content.getbuffer())
    return hashlib.sha256(content.getbuffer()).hexdigest()
