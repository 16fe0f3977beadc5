"""The work folder of a build: a folder a finished stage, each with the key of what made it, so that a build resumes.

A stage is written into ``<name>.partial`` and renamed when it is complete, so a folder without that ending is whole.
"""

import errno
import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from data_prep.progress import Progress
from dstransformer.corpus import Option
from dstransformer.corpus.writer import sync, write_text
from dstransformer.errors import StorageError, UserError

STAGES = ("read", "clean", "vocab")

_RECORD_NAME = "stage.json"
_LOCK_NAME = "lock"


class StageRecord(BaseModel):
    """What made a stage: ``after`` is the key of the stage before it, ``report`` what the stage found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    after: str
    options: dict[str, Option]
    report: dict[str, Any]


def stage_key(name: str, after: str, content: dict[str, Any]) -> str:
    """Hash of a stage's options and of all that came before it; the same key means the same bytes."""
    text = json.dumps([name, after, content], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Workspace:
    """A work folder held by this process. Get one from `open_workspace`."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder = folder
        self.progress = progress

    def run(
        self,
        name: str,
        after: str,
        content: dict[str, Any],
        options: dict[str, Option],
        make: Callable[[Path], BaseModel],
    ) -> StageRecord:
        """Have the stage ``name`` finished.

        Args:
            name: the stage's folder.
            after: the key of the stage before it.
            content: all that decides the stage's bytes beside ``after``; a finished stage of the same key is reused.
            options: what the manifest is to say of the stage.
            make: writes the stage's files into a new folder and returns the stage's report.
        """
        key = stage_key(name, after, content)
        finished = self._load(name)
        if finished and finished.key == key:
            self.progress.note(f"{name}: finished before, reused")
            return finished
        partial = self.folder / f"{name}.partial"
        remove_folder(partial)
        partial.mkdir()
        try:
            report = make(partial)
            record = StageRecord(key=key, after=after, options=options, report=report.model_dump(mode="json"))
            write_text(partial / _RECORD_NAME, record.model_dump_json(indent=2) + "\n")
        except BaseException:
            remove_folder(partial)
            raise
        remove_folder(self.folder / name)
        partial.rename(self.folder / name)
        sync(self.folder)
        return record

    def finished(self, name: str) -> StageRecord:
        """The record of a finished stage; UserError where there is none."""
        record = self._load(name)
        if record is None:
            raise UserError(f"{self.folder} has no finished stage {name!r}; run `dst-prep {name} --work {self.folder}`")
        return record

    def clear(self) -> None:
        """Remove the stages, finished or not, and the folder where nothing else is in it."""
        for name in STAGES:
            remove_folder(self.folder / name)
            remove_folder(self.folder / f"{name}.partial")
        (self.folder / _LOCK_NAME).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def has_stages(self) -> bool:
        """Whether any stage is finished."""
        return any(self._load(name) for name in STAGES)

    def _load(self, name: str) -> StageRecord | None:
        try:
            return StageRecord.model_validate_json((self.folder / name / _RECORD_NAME).read_bytes())
        except (OSError, ValidationError):
            return None


@contextmanager
def open_workspace(folder: Path, progress: Progress) -> Iterator[Workspace]:
    """Create ``folder`` if need be and hold it until the block ends.

    Raises:
        UserError: it cannot be created, or another process holds it.
        StorageError: there is no room for it.
    """
    make_folder(folder)
    with (folder / _LOCK_NAME).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another build is at work in {folder}; wait for it, or choose another folder") from None
        except OSError as error:  # some network file systems have no locks
            progress.note(f"{folder} cannot be locked ({error.strerror}); start no second build in it")
        yield Workspace(folder, progress)


def make_folder(folder: Path) -> None:
    """``mkdir -p``, and try that files can be made in it; UserError where the path is at fault."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise UserError(f"cannot create {folder}: {error.filename} is not a folder; choose another one") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise StorageError(f"cannot write in {folder}: {error.strerror}") from None
        raise UserError(f"cannot write in {folder}: {error.strerror}; choose another folder") from None


def remove_folder(folder: Path) -> None:
    """``rm -rf``; a folder that is not there is fine."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
