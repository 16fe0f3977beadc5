"""The ``checkpoints`` folder of a run, and which checkpoints are kept, averaged and compared.

Only complete checkpoints are visible; the newest and the best are kept.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dstransformer.errors import ConfigError, DataError, NewerFormatError, StorageError, UnreadableError, shown
from dstransformer.evaluation import Score
from dstransformer.io.files import (
    ROOM_ADVICE,
    file_sha256,
    replace_file,
    replacing,
    storage_errors,
    sync,
    write_durably,
)
from dstransformer.io.products import MARKER, complete_checkpoints, write_marker
from dstransformer.model import open_bundle
from dstransformer.training.checkpoints.format import MANIFEST, Checkpoint, TrainState, open_checkpoint, read_checkpoint

logger = logging.getLogger(__name__)

LATEST = "latest"


class CheckpointFolder:
    """The ``checkpoints`` folder of a run.

    Args:
        path: The folder; need not exist.
        keep_last: How many of the newest checkpoints to keep.
        keep_best: How many of the checkpoints with the highest scores to keep in addition.
    """

    def __init__(self, path: Path, keep_last: int = 1, keep_best: int = 0) -> None:
        self.path = path
        self._keep_last = keep_last
        self._keep_best = keep_best

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.path.parent

    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first. Those whose manifest cannot be read are skipped with a warning."""
        readable = []
        for folder in self.folders():
            try:
                readable.append(read_checkpoint(folder))
            except DataError as error:
                logger.warning("%s; the checkpoint is skipped and not deleted", error)
        return readable

    def find(self, resume: str, *, verify: bool = True) -> Checkpoint | None:
        """Find and fully verify the checkpoint to resume from; None for a new run.

        Args:
            resume: ``auto``: the latest valid one, if any. ``never``: none, and there must be none. Otherwise the path
                of one, which may be of another run if this one has none.
            verify: Whether to compare its files with their hashes, which takes long; without it ``auto`` finds none.

        Raises:
            ConfigError: There are checkpoints, and ``resume`` is ``never`` or names one of another run.
            DataError: The named checkpoint, or all, are damaged.
        """
        if resume == "auto":
            return self.latest_valid() if verify else None
        if resume == "never":
            if (latest := self.latest()) is not None:
                raise ConfigError(
                    f"{self.run} already holds a run, at step {latest.state.step}: choose another --run, delete the "
                    "folder, or resume with --resume auto"
                )
            return None
        try:
            checkpoint = (open_checkpoint if verify else read_checkpoint)(Path(resume).resolve())
        except DataError as error:
            raise DataError(
                f"--resume {shown(resume, quote=False, limit=200)}: {error}; name another, such as "
                "RUN/checkpoints/step-00001000, or auto for the latest valid one"
            ) from None
        if checkpoint.path.parent != self.path.resolve() and self.latest() is not None:
            raise ConfigError(
                f"--resume {resume} is not a checkpoint of {self.run}, which has its own: choose another --run"
            )
        return checkpoint

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint, without verifying its files; None if there is none."""
        folders = self.folders()
        return read_checkpoint(folders[-1]) if folders else None

    def latest_valid(self) -> Checkpoint | None:
        """The newest checkpoint whose files all match their hashes; damaged ones are skipped with a warning.

        Raises:
            DataError: All checkpoints are damaged.
            UnreadableError: One cannot be read now.
        """
        damage: list[DataError] = []
        newest = next(self._iter_valid(damage), None)
        if newest is None and damage:
            raise DataError(
                f"every checkpoint in {self.path} is damaged, including the oldest: {damage[-1]}; restore one, or "
                "start a new run with another --run"
            )
        return newest

    def _iter_valid(self, damage: list[DataError]) -> Iterator[Checkpoint]:
        """The checkpoints whose files match their hashes, newest first. What is wrong with others joins ``damage``."""
        for folder in reversed(self.folders()):
            try:
                checkpoint = open_checkpoint(folder)
            except (NewerFormatError, UnreadableError):
                raise
            except DataError as error:
                logger.warning("%s; trying the previous checkpoint", error)
                damage.append(error)
            else:
                yield checkpoint

    def latest_finite(self, other_than: int | None) -> Checkpoint | None:
        """The newest valid checkpoint that was not saved among non-finite updates; None if there is none.

        One that was written because of a stop request only counts if there is no other, so that a run rolls back to
        the same checkpoint whether it was stopped or not.

        Args:
            other_than: The update of a checkpoint that does not count, although older ones do.

        Raises:
            UnreadableError: A checkpoint cannot be read now.
        """
        interim: Checkpoint | None = None
        for checkpoint in self._iter_valid([]):
            state = checkpoint.state
            if state.recovery.consecutive_nonfinite or state.step == other_than:
                continue
            if not checkpoint.interim:
                return checkpoint
            interim = interim or checkpoint
        return interim

    def intact(self) -> list[Checkpoint]:
        """The checkpoints whose weights match their hashes, oldest first; damaged ones are left out with a warning.

        Raises:
            DataError: All are damaged.
            ConfigError: All are damaged, the newest in its configuration.
            StorageError: There are none, or one cannot be read now.
        """
        intact: list[Checkpoint] = []
        damage: ConfigError | DataError | None = None
        for folder in self.folders():
            try:
                checkpoint = read_checkpoint(folder)
                open_bundle(checkpoint.bundle).verify_weights()
            except UnreadableError:
                raise
            except (ConfigError, DataError) as error:
                logger.warning("%s; the final bundle is made without this checkpoint", error)
                damage = error
            else:
                intact.append(checkpoint)
        if intact:
            return intact
        if damage is not None:
            raise damage
        raise StorageError(f"cannot read {self.path}: the checkpoints are gone; mount their disk again")

    def amend(self, checkpoint: Checkpoint, state: TrainState, score: Score | None, *, interim: bool) -> Checkpoint:
        """Replace the training state and the score of a checkpoint in one write, and delete later ones. Rank 0 only."""
        amended = Checkpoint.scored(checkpoint.path, state, score, checkpoint.files, interim=interim)
        with storage_errors(checkpoint.path):
            replace_file(checkpoint.path / MANIFEST, amended.manifest_text)
        self.delete_after(state.step)
        return amended

    def partial_path(self, step: int) -> Path:
        """The folder in which the checkpoint of an update is written before it becomes visible."""
        return self.path / f".partial-step-{step:08d}"

    def begin(self, step: int) -> Path:
        """Create an empty folder to write the checkpoint into. Rank 0 only.

        The run folder must exist: nothing is written into the mount point of an unmounted disk.
        """
        partial = self.partial_path(step)
        with storage_errors(partial, full=ROOM_ADVICE):
            self.path.mkdir(exist_ok=True)
            for stale in self.path.glob(".partial-*"):
                _remove(stale)
            partial.mkdir()
            sync(self.path.parent)
        return partial

    def delete_after(self, step: int) -> None:
        """Delete all checkpoints after the one that the run resumes from, and make that one ``latest``. Rank 0 only."""
        with storage_errors(self.path):
            self._delete_after(f"step-{step:08d}")
            replace_file(self.path / LATEST, f"step-{step:08d}\n")

    def discard(self, step: int) -> None:
        """Delete the partial checkpoint, ignoring errors."""
        shutil.rmtree(self.partial_path(step), ignore_errors=True)

    def publish(
        self, state: TrainState, score: Score | None, files: Mapping[str, str], *, interim: bool = False
    ) -> Checkpoint:
        """Make the partial checkpoint visible: write its manifest, rename it, move ``latest``, prune. Rank 0 only.

        Later checkpoints, which training has gone back from, are deleted: the one just published is the newest. See
        :class:`Checkpoint` for what it has; ``files`` are all but those that this function writes.
        """
        partial = self.partial_path(state.step)
        final = self.path / f"step-{state.step:08d}"
        with storage_errors(partial, full=ROOM_ADVICE):
            write_marker(partial, "checkpoint")
            hashes = {**files, MARKER: file_sha256(partial / MARKER)}
            checkpoint = Checkpoint.scored(final, state, score, hashes, interim=interim)
            write_durably(partial / MANIFEST, checkpoint.manifest_text)
            for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
                sync(folder)
            # One of the same name is damaged, and was skipped when the run resumed, or it lacks a score.
            with self._set_aside(final), replacing(self.path / LATEST) as latest:
                write_durably(latest, f"{final.name}\n")
                partial.rename(final)
            self._delete_after(final.name)
            self._prune()
        return checkpoint

    def steps(self) -> list[int]:
        """The updates of all complete checkpoints, oldest first, damaged ones included."""
        return [int(folder.name.removeprefix("step-")) for folder in self.folders()]

    def folders(self) -> list[Path]:
        """The folders of complete checkpoints, oldest first, damaged ones included."""
        return complete_checkpoints(self.path)

    def _prune(self) -> None:
        """Delete the checkpoints that are no longer kept; log a warning for each that cannot be deleted."""
        complete = self.checkpoints()
        keep = {checkpoint.path for checkpoint in select_kept(complete, self._keep_last, self._keep_best)}
        for checkpoint in complete:
            if checkpoint.path not in keep:
                try:
                    self._delete(checkpoint.path)
                except OSError as error:
                    logger.warning("cannot delete %s yet: %s", checkpoint.path, error.strerror)

    def _delete_after(self, name: str) -> None:
        for folder in reversed(self.folders()):
            if folder.name > name:
                self._delete(folder)

    def _delete(self, folder: Path) -> None:
        with self._set_aside(folder):
            pass

    @contextmanager
    def _set_aside(self, folder: Path) -> Iterator[None]:
        """Hide a checkpoint, if it exists, during the block; then delete it, or restore it if the block failed."""
        if not folder.exists():
            yield
            return
        hidden = self.path / f".partial-{folder.name}-deleted"
        folder.rename(hidden)
        try:
            yield
        except BaseException:
            if not folder.exists():
                hidden.rename(folder)
            raise
        _remove(hidden)


def _remove(folder: Path) -> None:
    """Delete a folder; warn if a reader on a network file system still holds part of it."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        logger.warning("cannot delete %s yet: %s", error.filename or folder, error.strerror)


def select_kept(checkpoints: Sequence[Checkpoint], keep_last: int, keep_best: int) -> list[Checkpoint]:
    """Select the checkpoints to keep: the newest, and those with the highest scores.

    One that was written because of a stop request only is kept while it is the newest, and counts for neither number.
    """
    ordered = sorted(checkpoints, key=lambda c: c.state.step)
    newest = [*periodic(ordered)[-keep_last:], *ordered[-1:]]
    best = rank_by_score(checkpoints)[:keep_best]
    return [c for c in checkpoints if c in newest or c in best]


def periodic(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints that the run would have without any stop request; all, if it has no other."""
    return [c for c in checkpoints if not c.interim] or list(checkpoints)


def select_newest(checkpoints: Sequence[Checkpoint], steps: Iterable[int], number: int) -> list[Checkpoint]:
    """Select the newest checkpoints to average; those before the window may have been kept only for their score.

    A damaged checkpoint keeps its place in the window, so that no older one takes it.

    Args:
        checkpoints: The intact checkpoints, oldest first; at least one.
        steps: The updates of all checkpoints, damaged ones included.
        number: The size of the window.

    Returns:
        The checkpoints in the window, without those of a stop request. If all of it is damaged, the newest intact one.
    """
    intact = periodic(checkpoints)
    skipped = {c.state.step for c in checkpoints if c not in intact}
    places = {*steps, *(c.state.step for c in checkpoints)} - skipped
    first = sorted(places)[-number:][0]
    return [c for c in intact if c.state.step >= first] or intact[-1:]


def rank_by_score(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Rank the scored checkpoints, best first; of equal scores, the newer first.

    Only scores with the metric and the signature of the newest scored checkpoint are comparable: after a change of
    configuration a score may cover more or fewer sentences, or other tokens.
    """
    scored = sorted((c for c in checkpoints if c.score is not None), key=lambda c: c.state.step)
    comparable = [c for c in scored if (c.metric, c.signature) == (scored[-1].metric, scored[-1].signature)]
    return sorted(comparable, key=lambda c: (_rank(c), c.state.step), reverse=True)


def _rank(checkpoint: Checkpoint) -> float:
    score = checkpoint.named_score
    return float(checkpoint.score or 0.0) if score is None else score.rank


def past_warmup(checkpoints: Sequence[Checkpoint], warmup_steps: int) -> list[Checkpoint]:
    """The checkpoints from the end of the warm-up on. Before, weights move too far for an average to be useful."""
    return [checkpoint for checkpoint in checkpoints if checkpoint.state.step >= warmup_steps]
