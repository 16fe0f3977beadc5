"""Durable files: written atomically, flushed to disk, hashed and locked; and what to do while a disk fails."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from filelock import FileLock, Timeout

from dstransformer.errors import DataError, StorageError, UnreadableError, UserError, shown

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: What to do on a full disk while training.
RESUME_ADVICE = (
    "make room, then run the same command: it resumes from the latest checkpoint, or starts over if there is none"
)

#: What to do on a full disk while a training waits for it.
ROOM_ADVICE = "make room"

#: Maximum tries for something that must be written.
MAX_TRIES = 5

_FULL = (errno.ENOSPC, errno.EDQUOT)
#: A file is missing, of another kind, or larger than ``read_bounded`` accepts. Reading it again does not help.
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def storage_errors(path: Path | str, *, full: str = RESUME_ADVICE) -> Iterator[None]:
    """Turn an ``OSError`` of the file system in the block into an error of one line.

    Args:
        path: What is written: a file, or a folder with files. Of a folder the message names the file.
        full: What to do if there is no room.

    Raises:
        StorageError: The disk is full, permission is denied, or a folder has vanished.
        BrokenPipeError: The reader of a pipe has closed it.
        BlockingIOError: The system cannot start another process or thread.
    """
    try:
        yield
    except (BrokenPipeError, BlockingIOError):  # not from the file system
        raise
    except OSError as error:
        file = (error.filename if os.path.isdir(path) else None) or path  # noqa: PTH112  # Path.is_dir may raise
        number = error.errno
        if number is None and re.search(r"\d+ requested and \d+ written", str(error)):
            number = errno.ENOSPC  # NumPy's ``tofile`` says how much it wrote, and not why
        reason = os.strerror(number) if number else error
        raise StorageError(f"cannot write {file}: {reason}; {_advice(number, full)}") from error


def _advice(number: int | None, full: str) -> str:
    """What to do about an error of the file system, where ``full`` is what to do if there is no room."""
    if number in _FULL:
        return full
    if number == errno.EFBIG:
        return full.replace("make room", "raise `ulimit -f`")
    return "raise `ulimit -n`" if number == errno.EMFILE else "check the path and its permissions"


def read_error(path: Path, error: OSError) -> DataError:
    """The error of one line for a file that cannot be read: an ``UnreadableError`` if reading it again may work."""
    is_damage = isinstance(error, FileNotFoundError) or error.errno in _DAMAGE
    kind = DataError if is_damage else UnreadableError
    return kind(f"cannot read {path}: {error.strerror or error}")


def matching(pattern: Path) -> list[Path]:
    """The files and folders that a pattern fits, sorted. The name of a folder that exists is no pattern."""
    folder = next(parent for parent in pattern.parents if parent.is_dir())
    names = glob.glob(str(pattern.relative_to(folder)), root_dir=folder, recursive=True)  # noqa: PTH207
    return sorted(folder / name for name in names)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file, which is refused before it is read if it is larger than ``max_bytes``.

    Raises:
        OSError: The file cannot be read, has more bytes, or is a pipe or a device.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than the {max_bytes:,} bytes that such a file may have", str(path))
    return content


def is_plain_name(name: str) -> bool:
    """Whether a name is that of a file in its folder: no separator, not ``..``, printable, and not too long."""
    return (
        name not in ("", ".", "..") and name.isprintable() and not {"/", "\\"} & set(name) and len(name.encode()) <= 255
    )


def path_inside(folder: Path, name: str) -> Path:
    """The path of ``name`` in ``folder``, where a record in that folder states the name.

    Raises:
        DataError: The name, or a link in its path or below it, leads out of the folder.
    """
    path, root = folder / name, os.path.realpath(folder)
    is_plain = all(map(is_plain_name, name.split("/")))
    if is_plain and all(Path(os.path.realpath(entry)).is_relative_to(root) for entry in (path, *path.rglob("*"))):
        return path
    raise DataError(f"a record in {folder} names {shown(name)}, which leads out of that folder: remove the record")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush a folder and everything below it to disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def write_durably(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file, text as UTF-8, and flush it to disk."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    sync(path)


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: a reader sees the old content or the new, never a mixture."""
    with replacing(path) as partial:
        write_durably(partial, content)


def move_to_new(path: Path, target: Path) -> None:
    """Move a file to a place where there is none, atomically.

    Raises:
        FileExistsError: There is one. The file stays where it was.
        OSError: It cannot be moved.
    """
    try:
        os.link(path, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        path.replace(target)
    else:
        path.unlink()


def append_whole(path: Path, text: str, *, create: bool = True) -> None:
    """Append text to a file as UTF-8. If the disk is full, nothing is appended.

    Raises:
        OSError: The file cannot be written, or does not exist and ``create`` is false.
    """
    data = text.encode()
    flags = os.O_WRONLY | os.O_APPEND | (os.O_CREAT if create else 0)
    with os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0) as file:
        end = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError as error:
            with suppress(OSError):
                file.truncate(end)
            error.filename = error.filename or str(path)
            raise


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a path to write to, which replaces ``path`` if the block ends without an error."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def replace_folder(
    target: Path, write: Callable[[Path], None], *, overwrite: bool = True, full: str = RESUME_ADVICE
) -> None:
    """Write a folder beside ``target``, then move it there. The old folder stays until the new one is complete.

    Args:
        target: The folder.
        write: Creates the folder that it is given and writes the content into it.
        overwrite: Whether ``target`` may exist and hold something.
        full: What to do about a full disk.

    Raises:
        UserError: Another process writes the folder, or has written it although ``overwrite`` is false.
        StorageError: The folder cannot be written.
    """
    folder = Path(os.path.realpath(target))  # a link stays
    partial, old = folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.old")
    busy = f"another process writes {target} ({{owner}}): wait for it, or choose another folder"
    with storage_errors(target, full=full), ExitStack() as lock:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.enter_context(hold_lock(folder.with_name(f".{folder.name}.lock"), busy))
        if old.exists() and not folder.exists():  # a process was killed between the two renames below
            old.rename(folder)
        if not overwrite and folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"{target} already exists: choose another folder, or replace it with --overwrite")
        for stale in (partial, old):
            if stale.exists():
                shutil.rmtree(stale)
        try:
            write(partial)
            sync_tree(partial)
            if folder.exists():
                folder.rename(old)
            partial.rename(folder)
            sync(folder.parent)
        finally:
            if old.exists() and not folder.exists():
                old.rename(folder)
            for stale in (partial, old):
                shutil.rmtree(stale, ignore_errors=True)


@contextmanager
def hold_lock(path: Path, busy: str, *, wait: float = 0.0, keep: bool = False) -> Iterator[None]:
    """Hold a lock file. The lock ends with this process, however that ends; child processes do not inherit it.

    On a file system without locks a warning is logged instead.

    Args:
        path: The lock file. It names its holder.
        busy: The error if another process holds the lock; ``{owner}`` is replaced by the holder.
        wait: Seconds to wait for the other process.
        keep: Whether the file stays when the lock is released.

    Raises:
        UserError: Another process holds the lock.
        OSError: The file cannot be created.
    """
    lock = FileLock(path, timeout=wait, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        path.touch()  # an OSError if no file can be created here at all
        raise UserError(busy.replace("{owner}", _owner(path))) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s cannot be locked (%s): start nothing else that writes there", path.parent, error.strerror)
        yield
        return
    try:
        with suppress(OSError):  # a full disk: the lock is held without the name of its holder
            path.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        yield
    finally:
        if not keep:  # before it is released, so that a waiting process creates a new file
            with suppress(OSError):
                path.unlink(missing_ok=True)
        lock.release()


def lock_owner(path: Path) -> str | None:
    """The process that holds a lock file; None if none does, or there is no file. Changes nothing.

    For an instant the file is locked for reading.

    Raises:
        OSError: The file cannot be read, or its file system has no locks.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # it may be a pipe
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(path)
    finally:
        os.close(descriptor)
    return None


def _owner(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip() or "unknown"
    return "unknown"


@dataclass(frozen=True)
class RetryPolicy:
    """Tries to write or read something several times, if the program cannot continue without it.

    Attributes:
        seconds: Seconds between two tries.
        wait: Waits for a number of seconds. An error of it, such as that the program is to stop, ends the tries.
        on_failure: Called with the name of what failed, the error, and the number of tries left.
    """

    seconds: float
    wait: Callable[[float], None]
    on_failure: Callable[[str, StorageError, int], None]

    def run(self, what: str, attempt: Callable[[], T]) -> T:
        """Call a function until it succeeds; returns what it returns.

        Args:
            what: What it writes or reads, for messages: ``the last checkpoint``.
            attempt: The function; raises StorageError if the disk refuses.

        Raises:
            StorageError: ``attempt`` failed :data:`MAX_TRIES` times.
        """
        for left in reversed(range(MAX_TRIES)):
            try:
                return attempt()
            except StorageError as error:
                self.on_failure(what, error, left)
                if not left:
                    failure = StorageError(f"{what} could not be saved, in {MAX_TRIES} tries: {error}")
                    failure.shared = error.shared
                    raise failure from error
                self.wait(self.seconds)
        raise AssertionError  # the last try returns or raises


class Backlog(Generic[T]):
    """Lines of a file, to write in order. Those that the disk refuses stay in memory, and go ahead of the next one.

    A warning is logged when the disk begins to refuse them, and when it accepts them again. Several threads may use it.

    Args:
        path: The file, for messages.
        write: Writes the lines given to it, all or none; raises OSError if the disk refuses. It is called without any
            by :meth:`flush` on an empty backlog.
    """

    def __init__(self, path: Path, write: Callable[[Sequence[T]], None]) -> None:
        self._path = path
        self._write = write
        self._waiting: list[T] = []
        self._refused = False
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """The number of lines that wait for the disk."""
        return len(self._waiting)

    def waiting(self) -> tuple[T, ...]:
        """The lines that wait for the disk, oldest first."""
        with self._lock:
            return tuple(self._waiting)

    def add(self, line: T) -> None:
        """Write a line, after those that wait."""
        with self._lock:
            self._waiting.append(line)
            self.flush()

    def flush(self) -> OSError | None:
        """Write the lines that wait. Returns what prevents it, if anything."""
        with self._lock:
            try:
                self._write(self._waiting)
            except OSError as error:
                if not self._refused:
                    reason = error.strerror or error
                    logger.warning(
                        "cannot write %s: %s; training continues, and its lines wait for the disk", self._path, reason
                    )
                self._refused = True
                return error
            self._waiting.clear()
            if self._refused:
                logger.warning("%s is written again, with the lines that waited", self._path)
            self._refused = False
            return None
