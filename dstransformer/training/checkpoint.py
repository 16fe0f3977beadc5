"""Checkpoints: DeepSpeed's state beside a portable bundle; complete or not there; the newest and the best stay."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dstransformer.config import precision_of, zero_stage
from dstransformer.corpus import Manifest
from dstransformer.corpus.manifest import file_sha256
from dstransformer.corpus.writer import sync
from dstransformer.errors import DataError
from dstransformer.training.storage import replace_file, storage_errors, write_durably

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-\d{8,}")

#: The name of a metric and its value.
Score = tuple[str, float]

MANIFEST, LATEST, ENGINE, BUNDLE = "manifest.json", "latest", "zero", "bundle"


@dataclass(frozen=True)
class TrainState:
    """Where a run stands: all that is needed to go on, beside the weights and the optimizer.

    Attributes:
        step: Updates computed so far.
        epoch: Of the next update.
        update: Number of the next update in its epoch.
        world_size: Processes that wrote the optimizer's state.
        zero_stage: ZeRO stage it was written under.
        precision: fp32, bf16 or fp16.
        corpus: The key of the corpus's build, from its manifest.
    """

    step: int
    epoch: int
    update: int
    world_size: int
    zero_stage: int
    precision: str
    corpus: str

    @classmethod
    def fresh(cls, ds_config: Mapping[str, Any], world_size: int, manifest: Manifest) -> TrainState:
        """Where a run stands before its first update."""
        return cls(0, 0, 0, world_size, zero_stage(ds_config), precision_of(ds_config), manifest.build_key)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk.

    Attributes:
        path: Its folder.
        state: Where the run stood.
        score: What it is ranked by, None where it was not evaluated.
        metric: What the score is: ``bleu``, ``bleu_first_500``; None where an earlier version wrote the checkpoint.
    """

    path: Path
    state: TrainState
    score: float | None
    metric: str | None = None

    @property
    def engine(self) -> Path:
        """DeepSpeed's state."""
        return self.path / ENGINE

    @property
    def bundle(self) -> Path:
        """The portable model."""
        return self.path / BUNDLE

    @property
    def sha256(self) -> str:
        """The hash of the manifest, which holds the hash of every file."""
        return file_sha256(self.path / MANIFEST)


class CheckpointFolder:
    """The folder ``checkpoints`` of a run.

    Args:
        path: The folder; need not exist yet.
        keep_last: Newest checkpoints that stay.
        keep_best: Checkpoints of the highest score that stay as well.
    """

    def __init__(self, path: Path, keep_last: int = 1, keep_best: int = 0) -> None:
        self.path = path
        self._keep_last = keep_last
        self._keep_best = keep_best

    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first; one whose manifest is damaged is left out, with a warning."""
        readable = []
        for folder in self._folders():
            try:
                readable.append(read_checkpoint(folder))
            except DataError as error:
                logger.warning("%s; the checkpoint is passed over, and left as it is", error)
        return readable

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint, which ``latest`` names; None where there is none yet."""
        folders = self._folders()
        return read_checkpoint(folders[-1]) if folders else None

    def latest_sound(self) -> Checkpoint | None:
        """The newest checkpoint whose files are all as they were written; damaged ones are passed over with a warning.

        Raises:
            DataError: There are checkpoints, and all are damaged.
        """
        damage: DataError | None = None
        for folder in reversed(self._folders()):
            try:
                checkpoint = read_checkpoint(folder)
                verify_checkpoint(checkpoint)
            except DataError as error:
                logger.warning("%s; trying the checkpoint before it", error)
                damage = error
            else:
                return checkpoint
        if damage is not None:
            raise DataError(
                f"every checkpoint in {self.path} is damaged, the oldest too: {damage}; restore one, or start another "
                "run with another --run"
            )
        return None

    def aside(self, step: int) -> Path:
        """Where the checkpoint of an update is written before it becomes visible."""
        return self.path / f".partial-step-{step:08d}"

    def begin(self, step: int) -> Path:
        """An empty folder to write the checkpoint into. Rank 0 only."""
        partial = self.aside(step)
        with storage_errors(partial):
            for stale in self.path.glob(".partial-*"):
                _remove(stale)
            partial.mkdir(parents=True)
            sync(self.path.parent)
        return partial

    def drop_after(self, step: int) -> None:
        """Delete what a run wrote after the checkpoint that it goes on from, which becomes ``latest``. Rank 0 only."""
        with storage_errors(self.path):
            for folder in reversed(self._folders()):
                if folder.name > f"step-{step:08d}":
                    self._delete(folder)
            self._point_at(f"step-{step:08d}")

    def discard(self, step: int) -> None:
        """Give up the checkpoint written aside, as far as the file system lets one."""
        shutil.rmtree(self.aside(step), ignore_errors=True)

    def publish(self, state: TrainState, score: Score | None, files: Mapping[str, str]) -> Checkpoint:
        """Make the checkpoint written aside visible: its manifest, a rename, ``latest`` moves, others go. Rank 0 only.

        Args:
            state: Where the run stands.
            score: What the checkpoint is ranked by, None where it was not evaluated.
            files: The sha256 of every file, by its path in the checkpoint.
        """
        partial = self.aside(state.step)
        final = self.path / f"step-{state.step:08d}"
        with storage_errors(partial):
            metric, value = (None, None) if score is None else score
            ranked = {"score": value, "metric": metric}
            manifest = {"state": asdict(state), **ranked, "files": dict(sorted(files.items()))}
            write_durably(partial / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
            for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
                sync(folder)
            if final.exists():  # a damaged one that the run has passed over
                self._delete(final)
            partial.rename(final)
            sync(self.path)
            self._point_at(final.name)
            self._prune()
        return read_checkpoint(final)

    def _folders(self) -> list[Path]:
        return sorted(path for path in self.path.glob("step-*") if _NAME.fullmatch(path.name))

    def _prune(self) -> None:
        complete = self.checkpoints()
        stay = {checkpoint.path for checkpoint in kept(complete, self._keep_last, self._keep_best)}
        for checkpoint in complete:
            if checkpoint.path not in stay:
                self._delete(checkpoint.path)

    def _point_at(self, name: str) -> None:
        replace_file(self.path / LATEST, f"{name}\n")

    def _delete(self, folder: Path) -> None:
        doomed = self.path / f".partial-{folder.name}-deleted"
        folder.rename(doomed)
        _remove(doomed)


def kept(checkpoints: Sequence[Checkpoint], keep_last: int, keep_best: int) -> list[Checkpoint]:
    """The checkpoints that stay: the newest, and those of the highest score."""
    newest = sorted(checkpoints, key=lambda c: c.state.step)[-keep_last:]
    best = by_score(checkpoints)[:keep_best]
    return [c for c in checkpoints if c in newest or c in best]


def by_score(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints that were evaluated as the newest of them was, best first; of equals the newer.

    A score of part of the text, from before the configuration changed, does not compare with one of all of it; that of
    an earlier version, which did not say what it was, is taken for the same.
    """
    scored = sorted((c for c in checkpoints if c.score is not None), key=lambda c: c.state.step)
    comparable = [c for c in scored if c.metric in (None, scored[-1].metric)]
    return sorted(comparable, key=lambda c: (c.score, c.state.step), reverse=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint.

    Raises:
        DataError: The folder is not a checkpoint.
    """
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise DataError(f"{folder} is not a checkpoint: it has no {MANIFEST}")
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return Checkpoint(folder, TrainState(**content["state"]), content["score"], content.get("metric"))
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{manifest} is damaged") from None


def verify_checkpoint(checkpoint: Checkpoint) -> None:
    """Compare every file with its hash.

    Raises:
        DataError: A file is missing or damaged.
    """
    files: dict[str, str] = json.loads((checkpoint.path / MANIFEST).read_text(encoding="utf-8"))["files"]
    for name, digest in files.items():
        path = checkpoint.path / name
        if not path.is_file() or file_sha256(path) != digest:
            raise DataError(f"{path} is missing or damaged")


def _remove(folder: Path) -> None:
    """Delete what is not needed any more; a reader on a network file system may keep some of it for a while."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        logger.warning("cannot delete %s yet: %s", error.filename or folder, error.strerror)
