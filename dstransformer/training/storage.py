"""Writing what must survive a power cut: whole or not at all, and one line where the file system refuses."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dstransformer.corpus.writer import sync
from dstransformer.errors import StorageError


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
        advice = "make room, then resume with the same command" if full else "check the path and its permissions"
        raise StorageError(f"cannot write {error.filename or path}: {error.strerror or error}; {advice}") from error


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Write a file and wait until it is on the disk."""
    path.write_bytes(content)
    sync(path)


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
            try:
                aside.rename(target)
            except OSError:
                if old.exists():
                    old.rename(target)
                raise
            sync(target.parent)
        finally:
            for stale in (aside, old):
                shutil.rmtree(stale, ignore_errors=True)
