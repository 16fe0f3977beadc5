"""Writing what must survive a power cut: whole or not at all, and one line where the file system refuses."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dstransformer.corpus.writer import sync
from dstransformer.errors import ConfigError, StorageError

logger = logging.getLogger(__name__)


_FULL = "make room, then give the same command: it goes on from the latest checkpoint, or starts anew without one"


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the file system refuses, when ``path`` is written, into one line.

    Raises:
        StorageError: No room, no permission, a folder that vanished.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = _FULL if full else "check the path and its permissions"
        raise StorageError(f"cannot write {error.filename or path}: {error.strerror or error}; {advice}") from error


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Write a file and wait until it is on the disk."""
    path.write_bytes(content)
    sync(path)


def replace_file(path: Path, text: str) -> None:
    """Put a file where another may be, in one step."""
    aside = path.with_name(f".{path.name}.partial")
    write_durably(aside, text.encode())
    aside.replace(path)
    sync(path.parent)


def sync_tree(folder: Path) -> None:
    """Wait until every file under a folder, and the folders themselves, are on the disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def replace_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder aside and put it where ``target`` is. What was there stays until the new one is complete."""
    aside, old = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.old")
    with storage_errors(target):
        if old.exists() and not target.exists():  # a process was killed between the two renames below
            old.rename(target)
        for stale in (aside, old):
            if stale.exists():
                shutil.rmtree(stale)
        try:
            write(aside)
            sync_tree(aside)
            if target.exists():
                target.rename(old)
            aside.rename(target)
            sync(target.parent)
        finally:
            if old.exists() and not target.exists():
                old.rename(target)
            for stale in (aside, old):
                shutil.rmtree(stale, ignore_errors=True)


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Keep other trainers out of a run's folder; the lock goes with the process, however it ends.

    Raises:
        ConfigError: Another process trains there.
    """
    with (run / ".lock").open("a+") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                logger.warning("%s cannot be locked (%s): start no second run in it", run, error.strerror)
            else:
                lock.seek(0)
                raise ConfigError(
                    f"another process trains in {run} ({lock.read().strip() or 'unknown'}): wait for it, stop it, or "
                    "give another --run"
                ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}\n")
        lock.flush()
        yield
