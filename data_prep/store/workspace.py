"""The work folder of a build, from which it resumes: one folder per finished stage.

A stage has a key, which hashes everything that decides its result. It is written to ``<name>.partial`` and renamed
when it is complete. A work folder is recognised by its file ``lock``. Only files that a stage declares are removed
from it.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from data_prep.recipe.options import Options
from data_prep.store.chunks import CHUNK_NAMES, CHUNKS, KEY_NAME, ROOT_NAMES, AnyReport, Report
from data_prep.store.chunks import RECORD_NAME as CHUNK_RECORD
from data_prep.workers import Workers
from dstransformer.data import Option
from dstransformer.errors import DataError, DstError, StorageError, UserError, shell_word
from dstransformer.io.files import file_sha256, hold_lock, is_plain_name, storage_errors, sync, write_durably
from dstransformer.io.json_text import JsonError, read_json
from dstransformer.io.progress import Progress

#: In a folder that a build has locked.
LOCK_NAME = "lock"

#: What to do on a full disk.
FULL_ADVICE = "make room, or choose another folder, and run the command again"

_RECORD_NAME = "stage.json"

#: Maximum tries to remove a folder.
_MAX_TRIES = 5

_LOCK_CONTENT = re.compile(rb"(process \d+ on .*\n)?")


@dataclass(frozen=True)
class StageFiles:
    """The names of the files that a stage writes; any other file in its folder is foreign and never removed.

    Attributes:
        results: Files of the stage.
        in_chunk: Files in the folder of a chunk.
        beside_chunks: Files beside these folders.
    """

    results: tuple[str, ...] = ()
    in_chunk: tuple[str, ...] = ()
    beside_chunks: tuple[str, ...] = ()

    def has(self, path: Sequence[str], *, folder: bool) -> bool:
        """Tell whether the stage writes a file or a folder, given the parts of its path in the stage's folder."""
        match path:
            case [name]:
                return name == CHUNKS if folder else name in (_RECORD_NAME, KEY_NAME, *self.results)
            case [_, root]:
                return folder and ROOT_NAMES.fullmatch(root) is not None
            case [_, _, name]:
                return CHUNK_NAMES.fullmatch(name) is not None if folder else name in self.beside_chunks
            case [_, _, _, name]:
                return not folder and name in (CHUNK_RECORD, *self.in_chunk)
        return False


class Stage(ABC):
    """A step of a build. It owns its key and declares its files."""

    #: Its name, which is that of its folder.
    name: ClassVar[str]

    files: ClassVar[StageFiles]

    #: Its options. A stage with several groups of options overrides ``record`` and ``content``.
    options: Options

    #: The key of the stage before it.
    after: str

    def record(self) -> dict[str, Option]:
        """Return its options for the manifest."""
        return self.options.record()

    def content(self) -> Mapping[str, Any]:
        """Return everything beside ``after`` that decides its result."""
        return self.record()

    @cached_property
    def key(self) -> str:
        """The hash of its content and of the key of the stage before it. Equal keys mean equal bytes."""
        text = json.dumps([self.name, self.after, self.content()], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


class StoredStage(Stage, Generic[AnyReport]):
    """A stage whose result is kept in the work folder, with a report."""

    report_type: ClassVar[type[Report]]

    @abstractmethod
    def check(self, work: "Workspace") -> None:
        """Check what the stage reads, and print warnings.

        Raises:
            UserError: The options do not fit what the folder holds.
            DataError: A file is damaged.
        """

    @abstractmethod
    def write(self, work: "Workspace", folder: Path, workers: Workers) -> AnyReport:
        """Write the stage's files into the new ``folder`` and return its report."""

    def warn(self, work: "Workspace") -> None:
        """Print warnings about the finished stage."""


class StageRecord(BaseModel):
    """What made a stage: ``after`` is the key of the previous stage, ``files`` are the hashes of its tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    after: str
    options: dict[str, Option]
    report: dict[str, Any]
    files: dict[str, str]


class Workspace:
    """A work folder locked by this process. Get one from ``open_workspace``."""

    def __init__(self, folder: Path, progress: Progress, stages: Sequence[type[Stage]]) -> None:
        self.folder = folder
        self.progress = progress
        self._stages = stages
        self._written: set[str] = set()

    def run(self, stage: StoredStage[Any], workers: Workers) -> None:
        """Run a stage unless it is finished. A finished stage with the same key is reused.

        Raises:
            UserError: The options do not fit what the folder holds, or a folder that no build made is in the way.
            DataError: A file that the stage reads is damaged.
            StorageError: The files cannot be written.
        """
        stage.check(self)
        finished = self._load(stage.name)
        if finished and finished.key == stage.key:
            self.progress.note(f"{stage.name}: finished before, reused")
        else:
            self._write(stage, workers)
        stage.warn(self)

    def _write(self, stage: StoredStage[Any], workers: Workers) -> None:
        target = self.folder / stage.name
        _refuse_foreign(target, stage.files)
        with self.unfinished(stage) as partial:
            with storage_errors(self.folder, full=FULL_ADVICE):
                report = stage.write(self, partial, workers)
                record = StageRecord(
                    key=stage.key,
                    after=stage.after,
                    options=stage.record(),
                    report=report.model_dump(mode="json"),
                    files={path.name: file_sha256(path) for path in sorted(partial.glob("*.arrow"))},
                )
                write_durably(partial / _RECORD_NAME, record.model_dump_json(indent=2) + "\n")
                (partial / KEY_NAME).unlink()
                sync(partial)
            _remove_stage(target, stage.files)
            partial.rename(target)
            sync(self.folder)
        self._written.add(stage.name)

    @contextmanager
    def unfinished(self, stage: Stage) -> Iterator[Path]:
        """Yield the folder of an unfinished stage; it is removed when the block ends.

        What workers finished for a stage with this key, before a build was killed, stopped or lost its workers, is in
        it, and stays if that happens again.

        Raises:
            UserError: The folder holds files that no build made.
            StorageError: The disk is full or fails.
        """
        partial = self.folder / f"{stage.name}.partial"
        _refuse_foreign(partial, stage.files)
        if _has_chunks(partial, stage.key):
            for entry in partial.iterdir():
                if entry.name not in (KEY_NAME, CHUNKS):  # written again from the chunks
                    entry.unlink()
        else:
            _remove_stage(partial, stage.files)
            with storage_errors(self.folder, full=FULL_ADVICE):
                partial.mkdir()
                (partial / KEY_NAME).write_text(stage.key, encoding="utf-8")
        keep = False
        try:
            yield partial
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | DstError)
            keep = stopped and not isinstance(error, UserError | StorageError) and _has_chunks(partial, stage.key)
            raise
        finally:
            if not keep:
                _remove_stage(partial, stage.files)

    def verify(self, stage: type[Stage]) -> None:
        """Compare the tables of a finished stage with their hashes, unless this process has just written them.

        Raises:
            DataError: A table is damaged or gone.
        """
        if stage.name in self._written:
            return
        for file, sha256 in self.finished(stage).files.items():
            path = self.folder / stage.name / file
            if not is_plain_name(file) or not path.is_file() or file_sha256(path) != sha256:
                raise DataError(
                    f"{path} is damaged or gone: remove {path.parent}, then run `dst-prep {stage.name}` or "
                    "`dst-prep build` again"
                )

    def finished(self, stage: type[Stage]) -> StageRecord:
        """Return the record of a stage.

        Raises:
            UserError: The stage is not finished.
        """
        record = self._load(stage.name)
        if record is None:
            raise UserError(
                f"{self.folder} has no finished stage {stage.name!r}; run `dst-prep {stage.name} "
                f"--work {shell_word(self.folder)}`"
            )
        return record

    def chain(self, *stages: type[Stage]) -> list[StageRecord]:
        """Return the records of consecutive finished stages.

        Raises:
            UserError: A stage is not finished, or an earlier one has changed since it was written.
        """
        records = [self.finished(stage) for stage in stages]
        for before, record, stage in zip(records, records[1:], stages[1:], strict=False):
            if record.after != before.key:
                raise UserError(
                    f"the stage {stage.name!r} in {self.folder} was made from other text or options than "
                    f"the folder holds now: run `dst-prep {stage.name} --work {shell_word(self.folder)}` again"
                )
        return records

    def report(self, stage: type[StoredStage[AnyReport]]) -> AnyReport:
        """Return the report of a stage.

        Raises:
            UserError: The stage is not finished, or another version of this program wrote it.
        """
        try:
            return cast(AnyReport, stage.report_type.model_validate(self.finished(stage).report))
        except ValidationError:
            raise UserError(
                f"the stage {stage.name!r} in {self.folder} was made by another version of dst-prep: "
                f"run `dst-prep {stage.name} --work {shell_word(self.folder)}` again"
            ) from None

    @contextmanager
    def kept_for_retry(self) -> Iterator[None]:
        """On an error, keep finished stages only if the user can fix it; a full disk must not stay full."""
        try:
            yield
        except (OSError, StorageError):
            self.clear()
            raise
        except UserError as error:
            if not self.has_work():
                raise
            raise type(error)(f"{error} (finished stages stay in {self.folder} for the next try)") from None
        finally:
            if not self.has_work():
                self.clear()

    def clear(self) -> None:
        """Remove the stages, finished or not, and the folder if nothing else is in it."""
        for stage in self._stages:
            for folder in (self.folder / stage.name, self.folder / f"{stage.name}.partial"):
                with suppress(UserError):  # files that no build made stay
                    _remove_stage(folder, stage.files)
        (self.folder / LOCK_NAME).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def has_work(self) -> bool:
        """Tell whether a stage is finished, or chunks of one are."""
        return any(
            self._load(stage.name) or (self.folder / f"{stage.name}.partial" / CHUNKS).exists()
            for stage in self._stages
        )

    def _load(self, name: str) -> StageRecord | None:
        try:
            return StageRecord.model_validate(read_json(self.folder / name / _RECORD_NAME))
        except (OSError, JsonError, ValidationError):
            return None


@contextmanager
def open_workspace(
    folder: Path, progress: Progress, stages: Sequence[type[Stage]], *, filled: bool = False
) -> Iterator[Workspace]:
    """Create ``folder`` if need be and lock it until the block ends.

    Args:
        folder: The work folder.
        progress: Shows what is done.
        stages: All stages, which say what files may be in the folder.
        filled: Whether the folder must be there.

    Raises:
        UserError: The folder cannot be created, is of another kind, or another process has locked it.
        StorageError: The disk is full or fails.
    """
    check_workspace(folder, filled=filled)
    with hold(folder, f"another build is at work in {folder}; wait for it, or choose another folder"):
        yield Workspace(folder, progress, stages)


@contextmanager
def hold(folder: Path, busy: str) -> Iterator[None]:
    """Create ``folder`` if need be and lock it against other processes until the block ends.

    Raises:
        UserError: Another process has locked the folder (the message is ``busy``), or the folder cannot be created.
        StorageError: The disk is full or fails.
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
        UserError: A file is in the way, or permission is denied.
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


def check_workspace(folder: Path, *, filled: bool = False) -> None:
    """Refuse a folder that is neither empty nor a work folder.

    Args:
        folder: The folder.
        filled: Whether only a work folder will do.

    Raises:
        UserError: The folder holds other files, or should be ``filled`` and does not exist.
    """
    if is_workspace(folder):
        return
    advice = "name the folder that `dst-prep read --work` filled" if filled else "name a new or an empty one"
    if filled and not os.path.lexists(folder):
        raise UserError(f"--work {folder} does not exist: {advice}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--work {folder} is not a folder: {advice}")
    try:
        entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; choose another folder") from None
    if entries or filled:
        raise UserError(f"--work {folder} is not a work folder but holds {list_names(entries) or 'nothing'}: {advice}")


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


def has_stages(folder: Path) -> bool:
    """Tell whether ``folder`` is a work folder with a stage, finished or not."""
    found = (path for pattern in (f"*/{_RECORD_NAME}", f"*.partial/{KEY_NAME}") for path in folder.glob(pattern))
    return is_workspace(folder) and any(found)


def list_names(names: Sequence[str]) -> str:
    """Format the first three names and the number of others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _refuse_foreign(folder: Path, files: StageFiles) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} is in the way and was not made by a build: move it away, or choose another --work")
    if not folder.exists():
        return
    if foreign := list(_iter_foreign(folder, (), files)):
        raise UserError(
            f"{folder} holds files that no build made ({list_names(sorted(foreign))}): move that away first"
        )


def _iter_foreign(folder: Path, above: tuple[str, ...], files: StageFiles) -> Iterator[str]:
    """What no build made. The type of an entry comes with its name, so that a large build costs no call per file."""
    with os.scandir(folder) as entries:
        for entry in entries:
            path = (*above, entry.name)
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.is_symlink() or not files.has(path, folder=is_folder):
                yield "/".join(path)
            elif is_folder:
                yield from _iter_foreign(folder / entry.name, path, files)


def _has_chunks(partial: Path, key: str) -> bool:
    """Tell whether an unfinished stage holds chunks made for the stage with this key."""
    try:
        names = {entry.name for entry in partial.iterdir()}
        return names >= {KEY_NAME, CHUNKS} and (partial / KEY_NAME).read_text(encoding="utf-8") == key
    except (OSError, UnicodeError):
        return False


def _remove_stage(folder: Path, files: StageFiles) -> None:
    """Remove a stage's folder if it exists.

    Raises:
        UserError: The folder holds files that no build made.
    """
    _refuse_foreign(folder, files)
    for left in reversed(range(_MAX_TRIES)):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if not folder.exists():
                return
        except OSError:  # a cancelled task may still be running on a worker of a cluster
            if not left:
                raise
        else:
            return
        time.sleep(0.5)
