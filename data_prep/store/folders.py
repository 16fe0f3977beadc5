"""Folders that a build creates, and the lock that keeps other builds out of them."""

import errno
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dstransformer.errors import StorageError, UserError
from dstransformer.io.files import hold_lock, storage_errors

LOCK_NAME = "lock"

#: What to do on a full disk.
FULL_ADVICE = "make room, or choose another folder, and run the command again"


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


def list_names(names: Sequence[str]) -> str:
    """Format the first three names and the number of others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
