"""Lines of UTF-8 text in and out, plain or gzipped: what is no text is refused by line, and no file is half-written."""

from __future__ import annotations

import gzip
import os
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from dstransformer.errors import DataError, StorageError, UserError

_GZIP_MAGIC = b"\x1f\x8b"

#: How files begin that people take for text, and what to do about each.
_NOT_TEXT = {
    b"\xff\xfe\x00\x00": "UTF-32 text: convert it with `iconv -f UTF-32 -t UTF-8`",
    b"\xff\xfe": "UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfd7zXZ\x00": "compressed by xz: unpack it with `xz -dc`",
    b"BZh": "compressed by bzip2: unpack it with `bzip2 -dc`",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it with `zstd -dc`",
    b"PK\x03\x04": "a zip archive: unpack it with `unzip`",
    b"%PDF-": "a PDF document: extract its text first",
}

#: Seconds without another line after which what an open pipe has sent is worth answering.
PAUSE = 0.2

#: Seconds after which it is answered, however its lines trickle.
PATIENCE = 1.0


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
    """The lines of an open file; errors call the file ``name``.

    A line ends with LF or CR LF, the last one may lack it, and a byte order mark before the first is dropped.

    Raises:
        DataError: No line at all, bytes that are not UTF-8 (with the line's number), or damaged gzip data.
    """
    zipped = file.peek(2)[:2] == _GZIP_MAGIC
    for line in _decoded(gzip.GzipFile(fileobj=file) if zipped else file, name):
        if line is not None:
            yield line


def iter_arriving(descriptor: int, name: str) -> Iterator[str | None]:
    """The lines of an open pipe, file or terminal, as :func:`iter_text` gives them, and None where they pause.

    A pause is :data:`PAUSE` seconds without another line, or :data:`PATIENCE` seconds since the first after the last
    pause; at a terminal, the end of each line.

    Raises:
        DataError: As :func:`iter_text`.
    """
    try:
        yield from _decoded(_arriving(descriptor), name)
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or error}") from None


def _arriving(descriptor: int) -> Iterator[bytes | None]:
    typed = os.isatty(descriptor)
    unzip: _Unzip | None = None
    unfinished: list[bytes] = []  # of the line that is arriving
    waited: float | None = None  # seconds, since the first line that is not answered; None where all are
    first = True
    while True:
        if waited is not None:
            began = time.monotonic()
            more = not typed and bool(select.select([descriptor], [], [], PAUSE)[0])
            waited += time.monotonic() - began
            if not more or waited > PATIENCE:
                yield None
                waited = None
        chunk = os.read(descriptor, 1 << 16)
        if first and chunk[:2] == _GZIP_MAGIC:
            unzip = _Unzip()
        first, ended = False, not chunk
        if unzip is not None:
            chunk = unzip.end() if ended else unzip.feed(chunk)
        end = chunk.rfind(b"\n") + 1
        if end:
            yield from BytesIO(b"".join((*unfinished, chunk[:end])))
            unfinished.clear()
            waited = waited or 0.0
        unfinished.append(chunk[end:])
        if ended:
            if rest := b"".join(unfinished):
                yield rest
            return


class _Unzip:
    """Gzip data as they come, one member after the other."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    def feed(self, data: bytes) -> bytes:
        """What more data unpack to."""
        unpacked = b""
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
            unpacked += self._member.decompress(data)
            data = self._member.unused_data
        return unpacked

    def end(self) -> bytes:
        """Nothing more comes."""
        if not self._member.eof:
            raise EOFError("they end in the middle")
        return b""


def _decoded(lines: Iterable[bytes | None], name: str) -> Iterator[str | None]:
    number = 0
    try:
        for line in lines:
            if line is None:
                yield None
                continue
            number += 1
            text = _decode(line, name, number).removesuffix("\n").removesuffix("\r")
            yield text.removeprefix("\ufeff") if number == 1 else text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{name}: the gzip data are damaged or break off after line {number} ({error})") from None
    if number == 0:
        raise DataError(f"{name} is empty: expected one sentence a line")


def _decode(line: bytes, name: str, number: int) -> str:
    if number == 1:
        for beginning, what in _NOT_TEXT.items():
            if line.startswith(beginning):
                raise DataError(f"{name} is {what}")
    zeros = line.count(0)
    if zeros > 1 and zeros * 4 > len(line):
        raise DataError(
            f"{name}, line {number}: {zeros} of {len(line)} bytes are zero, as in UTF-16 text; convert it with "
            "`iconv -f UTF-16LE -t UTF-8`"
        )
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason}); convert it, "
            "for example with `iconv -f LATIN1 -t UTF-8`"
        ) from None


@contextmanager
def writing_lines(path: str | Path | None, *, overwrite: bool = True) -> Iterator[Callable[[str], None]]:
    """A function that writes a line; the file appears, or replaces an old one, when the block ends without an error.

    Args:
        path: None and ``-`` are standard output, where each line is sent at once. A name that ends in ``.gz`` gets
            gzip.
        overwrite: Whether a file that is there may be replaced. A device or a pipe is written to in any case.

    Raises:
        UserError: The file is there and must not be replaced.
        StorageError: The file cannot be written.
    """
    if path is None or str(path) in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        stdout = _stdout()
        yield lambda line: _write(stdout, line, "standard output", flush=True)
        return
    name = str(path)
    with ExitStack() as stack:
        file, publish = stack.enter_context(_opened(Path(path), name, overwrite))
        lines: BinaryIO = file
        if name.endswith(".gz"):
            lines = cast(BinaryIO, gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        yield lambda line: _write(lines, line, name)
        with _storing(name):
            if lines is not file:
                lines.close()
            file.flush()
        publish()


@contextmanager
def _opened(path: Path, name: str, overwrite: bool) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """A file to write into, and what makes it visible where ``path`` is. Without that nothing is left of it."""
    with _storing(name):
        if path.is_dir():
            raise StorageError(f"cannot write {name or repr(name)}: it is a folder; name a file in it")
        # A device or a pipe is written to; only a file is replaced, and of a link what it points to.
        if path.exists() and not path.is_file():
            aside = target = path
        else:
            target = path.resolve()
            aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
        if not target.parent.is_dir():
            raise StorageError(
                f"cannot write {name}: {target.parent} is no folder; make it first, or give another name"
            )
        if aside != target and target.exists() and not overwrite:
            raise UserError(f"{name} is there already: replace it with --overwrite, or give another name")
        file = aside.open("wb")

    def publish() -> None:
        file.close()
        if aside != target:
            with _storing(name):
                aside.replace(target)

    try:
        yield file, publish
    finally:
        with suppress(OSError):  # what could not be written has been said
            file.close()
        if aside != target:
            with suppress(OSError):
                aside.unlink(missing_ok=True)


def _stdout() -> BinaryIO:
    if sys.stdout is None:
        raise StorageError("cannot write standard output: it is closed; give --output FILE")
    return sys.stdout.buffer


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
