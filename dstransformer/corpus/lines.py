"""Lines of UTF-8 text in and out, plain or gzipped: what is no text is refused by line, and no file is half-written."""

from __future__ import annotations

import errno
import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from dstransformer.errors import DataError, StorageError

_GZIP_MAGIC = b"\x1f\x8b"


def iter_lines(path: str | Path) -> Iterator[str]:
    """The lines of a file without their ends; see :func:`iter_text`.

    Raises:
        DataError: The file cannot be read, is empty, or is not text.
    """
    try:
        with Path(path).open("rb") as file:
            yield from iter_text(file, str(path))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def iter_text(file: BufferedReader, name: str) -> Iterator[str]:
    """The lines of an open file, each as soon as it is there; errors call the file ``name``.

    A line ends with LF or CR LF, the last one may lack it, and a byte order mark before the first is dropped.

    Raises:
        DataError: No line at all, bytes that are not UTF-8 (with the line's number), or damaged gzip data.
    """
    number = 0
    try:
        for number, line in enumerate(_unzipped(file), 1):
            text = _decode(line, name, number).removesuffix("\n").removesuffix("\r")
            yield text.removeprefix("\ufeff") if number == 1 else text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{name}: the gzip data are damaged or break off after line {number} ({error})") from None
    if number == 0:
        raise DataError(f"{name} is empty: expected one sentence a line")


@contextmanager
def writing_lines(path: str | Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes a line; the file appears, or replaces an old one, when the block ends without an error.

    Args:
        path: None is standard output, where each line is sent at once.

    Raises:
        StorageError: The file cannot be written.
    """
    if path is None:
        yield lambda line: _write(sys.stdout.buffer, line, "standard output", flush=True)
        return
    target, name = Path(path), str(path)
    # A device or a pipe is written to; only a file is replaced.
    in_place = target.exists() and not (target.is_file() or target.is_dir())
    aside = target if in_place else target.with_name(f".{target.name}.partial")
    try:
        with _storing(name):
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            file = aside.open("wb")
        try:
            yield lambda line: _write(file, line, name)
            with _storing(name):
                file.flush()
        finally:
            with suppress(OSError):  # what could not be written has been said
                file.close()
        if not in_place:
            with _storing(name):
                aside.replace(target)
    finally:
        if not in_place:
            aside.unlink(missing_ok=True)


def _write(file: BinaryIO, line: str, name: str, *, flush: bool = False) -> None:
    with _storing(name):
        file.write(f"{line}\n".encode())
        if flush:
            file.flush()


@contextmanager
def _storing(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has had enough, which is no failure
    except OSError as error:
        raise StorageError(f"cannot write {name}: {error.strerror}") from None


def _unzipped(file: BufferedReader) -> BufferedReader:
    # Both are iterated only, and a GzipFile iterates like a BufferedReader.
    return cast(BufferedReader, gzip.open(file)) if file.peek(2)[:2] == _GZIP_MAGIC else file


def _decode(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason}); convert it, "
            "for example with `iconv -f LATIN1 -t UTF-8`"
        ) from None
