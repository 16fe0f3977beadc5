"""The work folder of a build, from which it resumes: one folder per finished stage, with a key of all that made it.

A stage is written to ``<name>.partial`` and renamed when it is complete. A work folder is recognised by its file
``lock``. Only files that a build made are removed from it.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from data_prep.store.chunks import KEY_NAME, PIECES
from dstransformer.corpus import Option
from dstransformer.errors import DataError, DstError, StorageError, UserError
from dstransformer.io.files import file_sha256, hold_lock, is_plain_name, storage_errors, sync, write_durably
from dstransformer.io.json_text import JsonError, read_json
from dstransformer.terminal.progress import Progress

Report = TypeVar("Report", bound=BaseModel)

STAGES = ("read", "clean", "vocab")

LOCK_NAME = "lock"

#: What to do on a full disk.
FULL_ADVICE = "make room, or choose another folder, and run the command again"

_RECORD_NAME = "stage.json"

#: How often the removal of a folder is tried.
_REMOVALS = 5

_LOCK_CONTENT = re.compile(rb"(process \d+ on .*\n)?")
_ROOT = rf"{PIECES}/([0-9a-f]{{16}}|none)(-\d+)?"
_PIECE = rf"{_ROOT}/[a-z]+-\d{{6,}}(\.[0-9a-f]{{12}})?"
_FOLDERS_IN_STAGE = re.compile(rf"{PIECES}|{_ROOT}|{_PIECE}")
_IN_STAGE = re.compile(
    r"stage\.json|key|tokenizer\.(src\.)?model|(train|validation|test|whole)\.arrow"
    rf"|{_PIECE}/(piece\.json|(pairs|ids)\.arrow|keys|order|marks|sources|usable|index|entries|candidates)|{_ROOT}/chosen"
)


class StageRecord(BaseModel):
    """What made a stage: ``after`` is the key of the previous stage, ``report`` what the stage found.

    ``files`` are the hashes of its tables; empty in stages made before they were recorded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    after: str
    options: dict[str, Option]
    report: dict[str, Any]
    files: dict[str, str] = {}


def stage_key(name: str, after: str, content: dict[str, Any]) -> str:
    """Hash a stage's options and the key of the previous stage. Equal keys mean equal bytes."""
    text = json.dumps([name, after, content], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Workspace:
    """A work folder locked by this process. Get one from ``open_workspace``."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder = folder
        self.progress = progress
        self._made: set[str] = set()

    def run(
        self,
        name: str,
        after: str,
        content: dict[str, Any],
        options: dict[str, Option],
        make: Callable[[Path], BaseModel],
    ) -> StageRecord:
        """Run the stage ``name`` unless it is finished.

        Args:
            name: The stage's folder.
            after: The key of the stage before it.
            content: Everything beside ``after`` that decides the stage's bytes. A finished stage with the same key is
                reused.
            options: The stage's options, for the manifest.
            make: Writes the stage's files into a new folder and returns the stage's report.

        Raises:
            UserError: A folder that no build made is in the way.
            StorageError: The files cannot be written.
        """
        key = stage_key(name, after, content)
        finished = self._load(name)
        if finished and finished.key == key:
            self.progress.note(f"{name}: finished before, reused")
            return finished
        _refuse_foreign(self.folder / name)
        with self.unfinished(name, key) as partial:
            with storage_errors(self.folder, full=FULL_ADVICE):
                report = make(partial)
                files = {path.name: file_sha256(path) for path in sorted(partial.glob("*.arrow"))}
                found = report.model_dump(mode="json")
                record = StageRecord(key=key, after=after, options=options, report=found, files=files)
                write_durably(partial / _RECORD_NAME, record.model_dump_json(indent=2) + "\n")
                (partial / KEY_NAME).unlink()
                sync(partial)
            _remove_stage(self.folder / name)
            partial.rename(self.folder / name)
            sync(self.folder)
        self._made.add(name)
        return record

    @contextmanager
    def unfinished(self, name: str, key: str) -> Iterator[Path]:
        """Yield the folder of the unfinished stage ``name``; it is removed when the block ends.

        What workers finished for the stage with this key, before a build was killed, stopped or lost its workers, is in
        it, and stays if that happens again.

        Raises:
            UserError: It holds files that no build made.
            StorageError: There is no room for it.
        """
        partial = self.folder / f"{name}.partial"
        _refuse_foreign(partial)
        if _has_pieces(partial, key):
            for entry in partial.iterdir():
                if entry.name not in (KEY_NAME, PIECES):  # what is made of the pieces is made again
                    entry.unlink()
        else:
            _remove_stage(partial)
            with storage_errors(self.folder, full=FULL_ADVICE):
                partial.mkdir()
                (partial / KEY_NAME).write_text(key, encoding="utf-8")
        keep = False
        try:
            yield partial
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | DstError)
            keep = stopped and not isinstance(error, UserError | StorageError) and _has_pieces(partial, key)
            raise
        finally:
            if not keep:
                _remove_stage(partial)

    def verify(self, name: str) -> None:
        """Compare the tables of a finished stage with their hashes, unless this process has just made them.

        Raises:
            DataError: One is damaged or gone.
        """
        if name in self._made:
            return
        for file, sha256 in self.finished(name).files.items():
            path = self.folder / name / file
            if not is_plain_name(file) or not path.is_file() or file_sha256(path) != sha256:
                raise DataError(
                    f"{path} is damaged or gone: remove {path.parent}, then run `dst-prep {name}` or `dst-prep build` "
                    "again"
                )

    def finished(self, name: str) -> StageRecord:
        """Return the record of a stage.

        Raises:
            UserError: The stage is not finished.
        """
        record = self._load(name)
        if record is None:
            raise UserError(f"{self.folder} has no finished stage {name!r}; run `dst-prep {name} --work {self.folder}`")
        return record

    def report(self, name: str, kind: type[Report]) -> Report:
        """Return the report of a stage.

        Raises:
            UserError: The stage is not finished, or another version of this program made it.
        """
        try:
            return kind.model_validate(self.finished(name).report)
        except ValidationError:
            raise UserError(
                f"the stage {name!r} in {self.folder} was made by another version of dst-prep: "
                f"run `dst-prep {name} --work {self.folder}` again"
            ) from None

    def clear(self) -> None:
        """Remove the stages, finished or not, and the folder if nothing else is in it."""
        for name in (*STAGES, "encode"):
            for folder in (self.folder / name, self.folder / f"{name}.partial"):
                with suppress(UserError):  # files that no build made stay
                    _remove_stage(folder)
        (self.folder / LOCK_NAME).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def has_work(self) -> bool:
        """Tell whether a stage is finished, or pieces of one are."""
        pieces = (self.folder / f"{name}.partial" / PIECES for name in (*STAGES, "encode"))
        return any(self._load(name) for name in STAGES) or any(folder.exists() for folder in pieces)

    def _load(self, name: str) -> StageRecord | None:
        try:
            return StageRecord.model_validate(read_json(self.folder / name / _RECORD_NAME))
        except (OSError, JsonError, ValidationError):
            return None


@contextmanager
def open_workspace(folder: Path, progress: Progress, after: str = "") -> Iterator[Workspace]:
    """Create ``folder`` if need be and lock it until the block ends; the stage ``after`` must be finished.

    Raises:
        UserError: It cannot be created, is another kind of folder, or another process has locked it.
        StorageError: There is no room for it.
    """
    check_workspace(folder, after)
    space = Workspace(folder, progress)
    busy = f"another build is at work in {folder}; wait for it, or choose another folder"
    if after:
        try:
            space.finished(after)
        except UserError:
            if is_workspace(folder):
                with hold(folder, busy):  # a build that is at work has not come so far yet
                    pass
            raise
    with hold(folder, busy):
        yield space


def check_workspace(folder: Path, after: str = "") -> None:
    """Refuse a folder that is neither empty nor a work folder.

    Args:
        folder: The folder.
        after: The stage that should be finished in it, if any.

    Raises:
        UserError: It is neither, or the stage's folder does not exist.
    """
    if after and not os.path.lexists(folder):
        raise UserError(f"--work {folder} does not exist: name the folder that `dst-prep {after} --work` filled")
    if folder.exists() and not folder.is_dir():
        advice = f"the folder that `dst-prep {after} --work` filled" if after else "a new or an empty one"
        raise UserError(f"--work {folder} is not a folder: name {advice}")
    if folder.is_dir() and not is_workspace(folder) and (entries := _names(folder)):
        advice = f"name the folder that `dst-prep {after} --work` filled" if after else "choose a new or an empty one"
        raise UserError(f"--work {folder} is not a work folder but holds {list_names(entries)}: {advice}")


def is_workspace(folder: Path) -> bool:
    """Tell whether ``folder`` is a work folder: it has a build's lock file, which is empty or names its holder."""
    lock = folder / LOCK_NAME
    try:
        if not lock.is_file() or lock.is_symlink():
            return False
        with lock.open("rb") as file:
            return bool(_LOCK_CONTENT.fullmatch(file.read(400)))
    except OSError:
        return False


@contextmanager
def hold(folder: Path, busy: str) -> Iterator[None]:
    """Create ``folder`` if need be and lock it against other processes until the block ends.

    Raises:
        UserError: ``busy``, if another process has locked it; or it cannot be created.
        StorageError: There is no room for it.
    """
    with ExitStack() as held:
        while True:
            make_folder(folder)
            # Not found: the build that held the folder has just removed it.
            with storage_errors(folder, full=FULL_ADVICE), suppress(FileNotFoundError):
                held.enter_context(hold_lock(folder / LOCK_NAME, busy, keep=True))
                break
        yield


def make_folder(folder: Path) -> None:
    """Create a folder with its parents, and check that files can be created in it.

    Raises:
        UserError: The path is at fault.
        StorageError: The disk is full or fails.
    """
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


def list_names(names: Sequence[str]) -> str:
    """Format the first three names and the number of others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; choose another folder") from None


def _refuse_foreign(stage: Path) -> None:
    if stage.is_symlink() or (stage.exists() and not stage.is_dir()):
        raise UserError(f"{stage} is in the way and was not made by a build: move it away, or choose another --work")
    if not stage.exists():
        return
    if foreign := list(_iter_foreign(stage, "")):
        raise UserError(f"{stage} holds files that no build made ({list_names(sorted(foreign))}): move that away first")


def _iter_foreign(folder: Path, above: str) -> Iterator[str]:
    """What no build made. The folder lists kinds with names, so that not every file of a large build is looked at."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = above + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            expected = _FOLDERS_IN_STAGE if is_folder else _IN_STAGE
            if entry.is_symlink() or not expected.fullmatch(name):
                yield name
            elif is_folder:
                yield from _iter_foreign(folder / entry.name, f"{name}/")


def _has_pieces(partial: Path, key: str) -> bool:
    """Tell whether an unfinished stage holds pieces made for the stage with this key."""
    try:
        names = {entry.name for entry in partial.iterdir()}
        return names >= {KEY_NAME, PIECES} and (partial / KEY_NAME).read_text(encoding="utf-8") == key
    except (OSError, UnicodeError):
        return False


def _remove_stage(folder: Path) -> None:
    """Remove a stage's folder if it exists.

    Raises:
        UserError: It holds files that no build made.
    """
    _refuse_foreign(folder)
    for left in reversed(range(_REMOVALS)):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if not folder.exists():
                return
        except OSError:  # a task of a cluster that has not heard yet that it is not needed any more
            if not left:
                raise
        else:
            return
        time.sleep(0.5)
