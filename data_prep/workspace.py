"""The work folder of a build: a folder a finished stage, each with the key of what made it, so that a build resumes.

A stage is written into ``<name>.partial`` and renamed when it is complete, so a folder without that ending is whole.
A folder is a work folder by its file ``lock``. Nothing in it is removed that no build made.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from data_prep.progress import Progress
from dstransformer.corpus import Option
from dstransformer.corpus.writer import sync, write_text
from dstransformer.errors import StorageError, UserError

Report = TypeVar("Report", bound=BaseModel)

STAGES = ("read", "clean", "vocab")

LOCK_NAME = "lock"

_RECORD_NAME = "stage.json"
_IN_STAGE = re.compile(r"stage\.json|tokenizer\.model|(train|validation|test|whole|passed)\.arrow")


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
        _remove_stage(partial)
        _refuse_foreign(self.folder / name)
        partial.mkdir()
        try:
            with storing(self.folder):
                report = make(partial)
                record = StageRecord(key=key, after=after, options=options, report=report.model_dump(mode="json"))
                write_text(partial / _RECORD_NAME, record.model_dump_json(indent=2) + "\n")
        except BaseException:
            _remove_stage(partial)
            raise
        _remove_stage(self.folder / name)
        partial.rename(self.folder / name)
        sync(self.folder)
        return record

    def finished(self, name: str) -> StageRecord:
        """The record of a finished stage; UserError where there is none."""
        record = self._load(name)
        if record is None:
            raise UserError(f"{self.folder} has no finished stage {name!r}; run `dst-prep {name} --work {self.folder}`")
        return record

    def report(self, name: str, kind: type[Report]) -> Report:
        """What the finished stage ``name`` found; UserError where another version of this program made it."""
        try:
            return kind.model_validate(self.finished(name).report)
        except ValidationError:
            raise UserError(
                f"the stage {name!r} in {self.folder} was made by another version of dst-prep: "
                f"run `dst-prep {name} --work {self.folder}` again"
            ) from None

    def clear(self) -> None:
        """Remove the stages, finished or not, and the folder where nothing else is in it."""
        for name in STAGES:
            for folder in (self.folder / name, self.folder / f"{name}.partial"):
                with suppress(UserError):  # what no build made stays
                    _remove_stage(folder)
        (self.folder / LOCK_NAME).unlink(missing_ok=True)
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
def open_workspace(folder: Path, progress: Progress, after: str = "") -> Iterator[Workspace]:
    """Create ``folder`` if need be and hold it until the block ends; the stage ``after`` must be finished.

    Raises:
        UserError: it cannot be created, is another kind of folder, or another process holds it.
        StorageError: there is no room for it.
    """
    check_workspace(folder)
    space = Workspace(folder, progress)
    if after:
        space.finished(after)
    busy = f"another build is at work in {folder}; wait for it, or choose another folder"
    with hold(folder, busy, progress):
        yield space


def check_workspace(folder: Path) -> None:
    """Refuse, with a UserError, a folder that holds something and is not a work folder."""
    if folder.is_dir() and not is_workspace(folder) and (entries := _names(folder)):
        raise UserError(
            f"{folder} is not a work folder but holds {shown(entries)}: choose a new or an empty one for --work"
        )


def is_workspace(folder: Path) -> bool:
    """Whether a build has worked in ``folder``: it has the empty file that such builds lock."""
    lock = folder / LOCK_NAME
    return lock.is_file() and not lock.is_symlink() and lock.stat().st_size == 0


_held: set[int] = set()


def _let_go_in_child() -> None:
    """A worker must not keep a folder locked that its killed parent held."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def hold(folder: Path, busy: str, progress: Progress) -> Iterator[None]:
    """Create ``folder`` if need be and keep other processes out of it until the block ends.

    Raises:
        UserError: ``busy``, where another process holds it; or it cannot be created.
        StorageError: there is no room for it.
    """
    lock = folder / LOCK_NAME
    while True:
        make_folder(folder)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:  # the build that held the folder has just removed it
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(busy) from None
        except OSError as error:  # some network file systems have no locks
            progress.note(f"{folder} cannot be locked ({error.strerror}); start no second build in it")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                break
        os.close(descriptor)  # likewise
    _held.add(descriptor)
    try:
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Name ``folder``, as a StorageError, where there is no more room for what the block writes in it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        place = error.filename or f"in {folder}"
        raise StorageError(
            f"cannot write {place}: {os.strerror(error.errno)}; make room, or choose another folder, and run the "
            "command again"
        ) from None


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


def shown(names: Sequence[str]) -> str:
    """The first few of the names, and how many there are beside."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; choose another folder") from None


def _refuse_foreign(stage: Path) -> None:
    if stage.is_symlink() or (stage.exists() and not stage.is_dir()):
        raise UserError(f"{stage} is in the way and no build made it: move it away, or choose another --work")
    if not stage.exists():
        return
    foreign = [entry.name for entry in stage.iterdir() if not (_IN_STAGE.fullmatch(entry.name) and entry.is_file())]
    if foreign:
        raise UserError(f"{stage} holds what no build made ({shown(sorted(foreign))}): move that away first")


def _remove_stage(folder: Path) -> None:
    """Remove a stage's folder; UserError where it holds what no build made. One that is not there is fine."""
    _refuse_foreign(folder)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
