"""Folders at addresses of fsspec: S3, Google Cloud Storage, and what else it knows."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dstransformer.errors import DataError, DstError, UserError, shown, without_secrets
from dstransformer.io.requirements import how_to_install


def is_address(name: str) -> bool:
    """Whether a name is an address, such as ``s3://bucket/runs/base``, and no path."""
    return re.match(r"[a-z][a-z0-9+.-]+://", name) is not None


class RemoteFolder:
    """A folder at an address, which need not exist. Every error of the server is a ``DataError`` of one line.

    Raises:
        UserError: The protocol is unknown, or its package is not installed.
    """

    def __init__(self, address: str) -> None:
        self.name = without_secrets(address)
        try:
            import fsspec

            local = {"auto_mkdir": True} if address.startswith("file://") else {}
            self._files, root = fsspec.core.url_to_fs(address, **local)
        except ImportError as error:
            advice = how_to_install(error.name or "fsspec") or "install the package of fsspec for its protocol"
            raise UserError(f"{self.name}: {advice}") from None
        except ValueError as error:
            raise UserError(f"{self.name} is no address that fsspec knows ({_reason(error)})") from None
        self._root = root.rstrip("/")

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, sorted; none if it does not exist."""
        with self._errors("read"):
            self._files.invalidate_cache()
            try:
                paths = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError as error:
                if _lacks_bucket(error):
                    raise
                return []
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        with self._errors("read"):
            try:
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError as error:
                if _lacks_bucket(error):
                    raise
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, in one step where the server stores objects."""
        with self._errors("write"):
            self._files.pipe_file(self._path(name), content)

    def upload(self, path: Path, name: str) -> None:
        """Copy a file there.

        Raises:
            FileNotFoundError: The file is gone.
        """
        os.stat(path)  # noqa: PTH116 - whose error is the caller's, and not that of a server
        with self._errors("write"):
            self._files.put_file(str(path), self._path(name))

    def download(self, name: str, path: Path) -> None:
        """Copy a file from there; its folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors("read"):
            self._files.get_file(self._path(name), str(path))

    def delete(self, name: str) -> None:
        """Delete a file or a folder, if it exists."""
        with self._errors("delete from"):
            self._files.invalidate_cache()
            try:
                # fsspec takes the name for a pattern, but not on a local disk.
                path = self._path(name) if "file" in self._files.protocol else glob.escape(self._path(name))
                self._files.rm(path, recursive=True)
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except DstError:
            raise
        except Exception as error:  # each library has its own
            raise DataError(
                f"cannot {what} {self.name} ({_reason(error)}): check the address, the network and the key's rights"
            ) from None


def _lacks_bucket(error: FileNotFoundError) -> bool:
    return "bucket does not exist" in _reason(error)


def _reason(error: BaseException) -> str:
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:  # as fsspec wraps errors
        error = error.__cause__
    return shown(without_secrets(str(error)) or type(error).__name__, quote=False, limit=200)
