"""Checkpoints: DeepSpeed's state beside a portable bundle; complete or not there; the newest and the best stay."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError

from dstransformer.corpus.manifest import file_sha256
from dstransformer.errors import DataError, StorageError

_MAKE_ROOM = "make room, then resume with the same command"
_ROOM = 1 << 20  # less free space than this is a full disk

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
    """

    step: int
    epoch: int
    update: int
    world_size: int
    zero_stage: int
    precision: str


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: TrainState
    score: float | None

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
        """The complete checkpoints, oldest first."""
        return [read_checkpoint(folder) for folder in sorted(self.path.glob("step-*"))]

    def latest(self) -> Checkpoint | None:
        """The checkpoint that ``latest`` names, or None where there is none yet."""
        pointer = self.path / LATEST
        if not pointer.is_file():
            return None
        return read_checkpoint(self.path / pointer.read_text(encoding="utf-8").strip())

    def aside(self, step: int) -> Path:
        """Where the checkpoint of an update is written before it becomes visible."""
        return self.path / f".partial-step-{step:08d}"

    def begin(self, step: int) -> Path:
        """An empty folder to write the checkpoint into. Rank 0 only."""
        partial = self.aside(step)
        with storage_errors(partial):
            for stale in self.path.glob(".partial-*"):
                shutil.rmtree(stale)
            partial.mkdir(parents=True)
        return partial

    def drop_after(self, step: int) -> None:
        """Delete what a run wrote after the checkpoint that it goes on from, which becomes ``latest``. Rank 0 only."""
        with storage_errors(self.path):
            self._point_at(f"step-{step:08d}")
            for checkpoint in self.checkpoints():
                if checkpoint.state.step > step:
                    self._delete(checkpoint)

    def discard(self, step: int) -> None:
        """Give up the checkpoint written aside, as far as the file system lets one."""
        shutil.rmtree(self.aside(step), ignore_errors=True)

    def publish(self, state: TrainState, score: float | None) -> Checkpoint:
        """Make the checkpoint written aside visible: hash, rename, move ``latest``, prune. Rank 0 only."""
        partial = self.aside(state.step)
        final = self.path / f"step-{state.step:08d}"
        with storage_errors(partial):
            manifest = {
                "state": asdict(state),
                "score": score,
                "files": {str(file.relative_to(partial)): file_sha256(file) for file in _files(partial)},
            }
            _write_durably(partial / MANIFEST, json.dumps(manifest, indent=2) + "\n")
            if final.exists():  # a run resumed from an earlier checkpoint writes this one anew
                shutil.rmtree(final)
            partial.rename(final)
            self._point_at(final.name)
            self._prune()
        return read_checkpoint(final)

    def _prune(self) -> None:
        stay = {checkpoint.path for checkpoint in kept(self.checkpoints(), self._keep_last, self._keep_best)}
        for checkpoint in self.checkpoints():
            if checkpoint.path not in stay:
                self._delete(checkpoint)

    def _point_at(self, name: str) -> None:
        _write_durably(self.path / ".latest", name + "\n")
        (self.path / ".latest").replace(self.path / LATEST)

    def _delete(self, checkpoint: Checkpoint) -> None:
        doomed = self.path / f".partial-{checkpoint.path.name}"
        checkpoint.path.rename(doomed)
        shutil.rmtree(doomed)


def kept(checkpoints: Sequence[Checkpoint], keep_last: int, keep_best: int) -> list[Checkpoint]:
    """The checkpoints that stay: the newest, and those of the highest score (of equals the newer)."""
    newest = sorted(checkpoints, key=lambda c: c.state.step)[-keep_last:]
    scored = [c for c in checkpoints if c.score is not None]
    best = sorted(scored, key=lambda c: (c.score, c.state.step))[-keep_best:] if keep_best else []
    return [c for c in checkpoints if c in newest or c in best]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint.

    Raises:
        DataError: The folder is not a checkpoint.
    """
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise DataError(
            f"{folder} is not a checkpoint: it has no {MANIFEST}; name a folder such as RUN/checkpoints/step-00001000"
        )
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return Checkpoint(folder, TrainState(**content["state"]), content["score"])
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"{manifest} is not a checkpoint's manifest: the checkpoint is damaged; name an earlier one"
        ) from None


def verify_checkpoint(checkpoint: Checkpoint) -> None:
    """Compare every file with its hash.

    Raises:
        DataError: A file is missing or damaged.
    """
    files: dict[str, str] = json.loads((checkpoint.path / MANIFEST).read_text(encoding="utf-8"))["files"]
    for name, digest in files.items():
        path = checkpoint.path / name
        if not path.is_file() or file_sha256(path) != digest:
            raise DataError(f"{path} is missing or damaged: resume from another checkpoint with --resume PATH")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the file system refuses, when ``path`` is written, into one line."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = _MAKE_ROOM if full else "check the path and its permissions"
        raise StorageError(f"cannot write {error.filename or path}: {error.strerror or error}; {advice}") from error
    except (RuntimeError, SafetensorError) as error:  # how torch.save and safetensors report a full disk
        if _free_bytes(path) >= _ROOM:
            raise
        raise StorageError(f"cannot write {path}: {os.strerror(errno.ENOSPC)}; {_MAKE_ROOM}") from error


def _free_bytes(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def replace_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder aside and put it where ``target`` is, replacing what was there."""
    aside, old = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.old")
    with storage_errors(target):
        for stale in (aside, old):
            if stale.exists():
                shutil.rmtree(stale)
        try:
            write(aside)
            if target.exists():
                target.rename(old)
            aside.rename(target)
        finally:
            for stale in (aside, old):
                shutil.rmtree(stale, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
