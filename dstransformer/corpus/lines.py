"""Lines of UTF-8 text in and out, plain or gzipped: what is no text is refused by line, and no file is half-written."""

from __future__ import annotations

import fcntl
import gzip
import os
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
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
    _GZIP_MAGIC: "gzip inside gzip: unpack it once with `gzip -dc`",
}

# Text has none of them, other bytes many.
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r"))

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
        if str(path) == "-":
            raise DataError("standard input is not read here: name a file") from None
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
        what = "are cut off" if isinstance(error, EOFError) else "are damaged"
        where = f" after line {number}" if number else ""
        raise DataError(f"{name}: the gzip data {what}{where}; copy the file again") from None
    if number == 0:
        raise DataError(f"{name} is empty: expected one sentence per line")


def _decode(line: bytes, name: str, number: int) -> str:
    if number == 1:
        for beginning, what in _NOT_TEXT.items():
            if line.startswith(beginning):
                raise DataError(f"{name} is {what}")
        if b"\r" in line[:-1] and not line.endswith(b"\n"):
            raise DataError(f"{name}: its lines end in CR: convert it with `tr '\\r' '\\n'`")
    zeros = line.count(0)
    if zeros > 1 and zeros * 4 > len(line):
        raise DataError(
            f"{name}, line {number}: {zeros} of {len(line)} bytes are zero, as in UTF-16 text; convert it with "
            "`iconv -f UTF-16LE -t UTF-8`"
        )
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(line.translate(None, _CONTROLS)) < 0.98 * len(line):
            raise DataError(f"{name}, line {number}: not text, but binary data; name a text file") from None
        raise DataError(
            f"{name}, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason}); convert it, "
            "for example with `iconv -f LATIN1 -t UTF-8`"
        ) from None


#: Names of standard output.
_STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def is_stdout(path: str | Path | None) -> bool:
    """Whether :func:`writing_lines` takes ``path`` for standard output."""
    return path is None or str(path) in _STDOUT


@contextmanager
def writing_lines(
    path: str | Path | None, *, overwrite: bool = True, inputs: Iterable[str | Path | int] = ()
) -> Iterator[Callable[[str], None]]:
    """A function that writes a line; the file appears, or replaces an old one, when the block ends without an error.

    Args:
        path: None and ``-`` are standard output, where each line is sent at once. A name that ends in ``.gz`` gets
            gzip.
        overwrite: Whether a file that is there may be replaced. A device or a pipe is written to in any case.
        inputs: Files, or their open descriptors, that are never replaced.

    Raises:
        UserError: The file is there and must not be replaced, or another process is writing it.
        StorageError: The file cannot be written.
    """
    with writing_files([path], overwrite=overwrite, inputs=inputs) as (write,):
        yield write


@contextmanager
def writing_files(
    paths: Iterable[str | Path | None], *, overwrite: bool = True, inputs: Iterable[str | Path | int] = ()
) -> Iterator[list[Callable[[str], None]]]:
    """As :func:`writing_lines` for several files, which appear together once all are written."""
    forbidden = list(inputs)
    with ExitStack() as stack:
        outputs = [stack.enter_context(closing(_Output(path, overwrite, forbidden))) for path in paths]
        yield [output.write for output in outputs]
        for output in outputs:
            output.finish()
        for output in outputs:
            output.publish()


class _Output:
    """Lines on their way to a file, which appears when it is published, or to standard output, a device or a pipe.

    Beside the file lies ``.NAME.unfinished``, locked. The next command that writes NAME takes over what a killed one
    left of it.
    """

    def __init__(self, path: str | Path | None, overwrite: bool, inputs: Iterable[str | Path | int]) -> None:
        self._name = "standard output" if is_stdout(path) else str(path)
        self._overwrite = overwrite
        self._flush = self._zipped = False
        self._target: Path | None = None  # None where lines go out at once
        self._aside: Path | None = None
        if path is None or is_stdout(path):
            self._lines = self._file = _stdout()
            self._flush = True
            return
        with _storing(self._name):
            self._file = self._open(Path(path), inputs)
        self._zipped = self._name.endswith(".gz")
        self._lines = self._file
        if self._zipped:
            self._lines = cast(BinaryIO, gzip.GzipFile("", "wb", fileobj=self._file, mtime=0))

    def _open(self, path: Path, inputs: Iterable[str | Path | int]) -> BinaryIO:
        name = self._name
        if path.is_dir():
            raise StorageError(f"cannot write {name or repr(name)}: it is a folder; name a file in it")
        # A device or a pipe is written to; only a file is replaced, and of a link what it points to.
        if path.exists() and not path.is_file():
            return path.open("wb")
        target = path.resolve()
        if not target.parent.is_dir():
            raise StorageError(
                f"cannot write {name}: {target.parent} is not a folder; make it first, or give another name"
            )
        if any(_is_same(source, target) for source in inputs):
            raise UserError(f"{name} is an input of this command and would be replaced: give --output another name")
        aside = target.with_name(f".{target.name}.unfinished")
        file = _locked(aside, f"another command is writing {name}: wait for it, or give another name")
        self._target, self._aside = target, aside
        if target.exists() and not self._overwrite:
            self._file = file
            self.close()
            raise self._there_already()
        file.truncate()
        return file

    def _there_already(self) -> UserError:
        return UserError(f"{self._name} is there already: replace it with --overwrite, or give another name")

    def write(self, line: str) -> None:
        """Write a line."""
        with _storing(self._name):
            self._lines.write(f"{line}\n".encode())
            if self._flush:
                self._lines.flush()

    def finish(self) -> None:
        """All lines are written."""
        with _storing(self._name):
            if self._zipped:
                self._lines.close()
            self._file.flush()

    def publish(self) -> None:
        """Put the file in its place."""
        if self._target is None or self._aside is None:
            return
        with _storing(self._name):
            if not self._overwrite:
                try:
                    os.link(self._aside, self._target)
                except FileExistsError:
                    raise self._there_already() from None
                except OSError:  # a file system without hard links
                    if self._target.exists():
                        raise self._there_already() from None
                else:
                    return
            self._aside.replace(self._target)
            self._aside = None

    def close(self) -> None:
        """Leave nothing beside the file."""
        if self._flush:
            return
        if self._aside is not None:  # while it is locked: later it may be another command's
            with suppress(OSError):
                self._aside.unlink(missing_ok=True)
        with suppress(OSError):  # what could not be written has been said
            self._file.close()


def is_same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two names are of one file, that is there or not, be it through links."""
    return os.path.realpath(one) == os.path.realpath(other) or _is_same(one, Path(other))


def _is_same(source: str | Path | int, target: Path) -> bool:
    try:
        return os.path.samestat(os.stat(source), target.stat())  # noqa: PTH116
    except OSError:
        return False


def _locked(path: Path, busy: str) -> BinaryIO:
    """The file ``path``, made if need be, that no other process has in hand; UserError ``busy`` where one has."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(busy) from None
        except OSError:  # some network file systems have no locks
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the command that held it has just moved it away


def _stdout() -> BinaryIO:
    if sys.stdout is None:
        raise StorageError("cannot write standard output: it is closed; give --output FILE")
    return sys.stdout.buffer


@contextmanager
def _storing(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has had enough, which is no failure
    except OSError as error:
        raise StorageError(f"cannot write {name}: {error.strerror}") from None
