"""Reads and writes lines of UTF-8 text, plain or compressed. Errors name the line; files are written atomically."""

from __future__ import annotations

import gzip
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from io import BufferedReader, BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, cast

from dstransformer.errors import DataError, StorageError, UserError, counted
from dstransformer.io.compression import BLOCK, DamagedDataError, Unpacker, decompressed, format_of
from dstransformer.io.files import hold_lock, move_to_new, storage_errors
from dstransformer.io.products import check_text_output

#: How a catalogue begins, after lines such as comments: .po, XLIFF, TMX, those of Qt and Android; and .mo.
_CATALOGUE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:(?:msgid|msgctxt)\s*\"|(?:<[?!][^>]*>\s*)*<(?:xliff|TS|tmx|resources)[\s>])"
    rb"|\xde\x12\x04\x95|\x95\x04\x12\xde"
)
_BEFORE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:#|<\?|<!|$)")

#: Maximum bytes of a line with its end. Even a small gzipped file may unpack to an endless line.
MAX_LINE_BYTES = 16 * 2**20

#: Seconds without a new line after which the lines read so far from a pipe are processed.
PAUSE = 0.2

#: Seconds after which they are processed even if more lines keep coming.
MAX_WAIT = 1.0


def iter_lines(path: str | Path, *, ends: bool = False) -> Iterator[str]:
    """Iterate over the lines of a file; see :func:`iter_text`.

    Raises:
        DataError: The file cannot be read, is empty, or is not text.
    """
    try:
        with Path(path).open("rb") as file:
            yield from iter_text(file, str(path), ends=ends)
    except OSError as error:
        if str(path) == "-":
            raise DataError("standard input is not read here: name a file") from None
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def iter_text(file: BufferedReader, name: str, *, ends: bool = False) -> Iterator[str]:
    """Iterate over the lines of an open file; errors call the file ``name``.

    A line ends with LF or CR LF, which the last line may lack; ``ends`` keeps them. A byte order mark at the start is
    dropped.

    Raises:
        DataError: The file is empty, holds bytes that are not UTF-8, or its compressed data are damaged. The message
            names the line.
    """
    lines = decompressed(file)
    decoded = _decoded(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), name, ends)
    yield from (line for line in decoded if line is not None)


def iter_arriving(descriptor: int, name: str, *, ends: bool = False) -> Iterator[str | None]:
    """Iterate over the lines of an open pipe, file or terminal as :func:`iter_text` does, with None at each pause.

    A pause is :data:`PAUSE` seconds without another line, or :data:`MAX_WAIT` seconds of waiting since the first line
    after the last pause. At a terminal every line is followed by a pause.

    Raises:
        DataError: The input is empty, holds bytes that are not UTF-8, or its compressed data are damaged.
    """
    try:
        yield from _decoded(_arriving(descriptor), name, ends)
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or error}") from None


def _arriving(descriptor: int) -> Iterator[bytes | None]:
    is_terminal = os.isatty(descriptor)
    unpacker: Unpacker | None = None
    unfinished: list[bytes] = []  # parts of the line that is arriving
    waited: float | None = None  # seconds since the first unprocessed line; None if there is none
    first = True
    while True:
        if waited is not None:
            began = time.monotonic()
            more = not is_terminal and bool(select.select([descriptor], [], [], PAUSE)[0])
            waited += time.monotonic() - began
            if not more or waited > MAX_WAIT:
                yield None
                waited = None
        chunk = os.read(descriptor, BLOCK if first or unpacker else 1 << 16)
        if first and (kind := format_of(chunk)) is not None:
            unpacker = Unpacker(kind)
        first, ended = False, not chunk
        if unpacker is not None:
            chunk = unpacker.feed(chunk)
        end = chunk.rfind(b"\n") + 1
        if end:
            yield from BytesIO(b"".join((*unfinished, chunk[:end])))
            unfinished.clear()
            waited = waited or 0.0
        unfinished.append(chunk[end:])
        if sum(map(len, unfinished)) > MAX_LINE_BYTES:
            yield b"".join(unfinished)  # is refused
        if ended:
            if rest := b"".join(unfinished):
                yield rest
            return


def _decoded(lines: Iterable[bytes | None], name: str, ends: bool) -> Iterator[str | None]:
    number, in_head = 0, True
    try:
        for line in lines:
            if line is None:
                yield None
                continue
            number += 1
            if in_head and _CATALOGUE.match(line):
                raise DataError(
                    f"{name} is a catalogue of messages, not text: write its messages one a line, for example with "
                    "polib; to learn from, `dst-prep build --train` reads .po, .mo and .tmx"
                )
            in_head = in_head and _BEFORE.match(line) is not None
            if len(line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; write one sentence per line"
                )
            text = _decode(line, name, number)
            text = text if ends else text.removesuffix("\n").removesuffix("\r")
            yield text.removeprefix("\ufeff") if number == 1 else text
    except DamagedDataError as error:
        where = f" after line {number}" if number else ""
        raise DataError(f"{name}: {error}{where}; copy the file again") from None
    if number == 0:
        raise DataError(f"{name} is empty: expected one sentence per line")


def _decode(line: bytes, name: str, number: int) -> str:
    if number == 1 and b"\r" in line[:-1] and not line.endswith(b"\n"):
        raise DataError(f"{name}: its lines end in CR: convert it with `tr '\\r' '\\n'`")
    # UTF-16 of Latin letters is valid UTF-8 in which every other byte is zero. Crawled text has single ones.
    wrong = line.index(0) if line.count(0) * 4 > len(line) else None
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong is not None:
        raise DataError(
            f"{name}, line {number}, byte {wrong + 1}: not UTF-8 (0x{line[wrong]:02x}); convert it, for example with "
            "`iconv -f ENCODING -t UTF-8`"
        )
    return text


_FULL_ADVICE = "make room, or give another name"

#: Names of standard output.
_STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def is_stdout(path: str | Path | None) -> bool:
    """Tell whether :func:`writing_lines` takes ``path`` for standard output."""
    return path is None or str(path) in _STDOUT


@contextmanager
def writing_lines(
    path: str | Path | None, *, overwrite: bool = True, inputs: Iterable[str | Path | int] = ()
) -> Iterator[Callable[..., None]]:
    """Yield a function that writes a line, with another ``end`` than LF if it is given one.

    The file appears, or replaces another, if the block ends without an error.

    Args:
        path: The file; None and ``-`` are standard output, which is flushed after every line. A file whose name ends
            in ``.gz`` is compressed.
        overwrite: Whether an existing file may be replaced. A device or a pipe is always written to.
        inputs: Files, or their open descriptors, that are never replaced.

    Raises:
        UserError: The file exists and ``overwrite`` is false, or another process is writing it.
        StorageError: The file cannot be written.
    """
    with writing_files([path], overwrite=overwrite, inputs=inputs) as (write,):
        yield write


@contextmanager
def writing_files(
    paths: Iterable[str | Path | None], *, overwrite: bool = True, inputs: Iterable[str | Path | int] = ()
) -> Iterator[list[Callable[..., None]]]:
    """Like :func:`writing_lines` for several files, which appear together once all are written."""
    forbidden = list(inputs)
    with ExitStack() as stack:
        outputs = [stack.enter_context(closing(_Output(path, overwrite, forbidden))) for path in paths]
        yield [output.write for output in outputs]
        for output in outputs:
            output.finish()
        for output in outputs:
            output.publish()


class _Output:
    """Writes lines to standard output, a device or a pipe, or to a file that appears when it is published.

    Until then the lines are in ``.NAME.unfinished`` beside the file, and ``.NAME.lock`` keeps other commands out. The
    next command that writes NAME replaces what a killed one left behind.
    """

    def __init__(self, path: str | Path | None, overwrite: bool, inputs: Iterable[str | Path | int]) -> None:
        self._name = "standard output" if is_stdout(path) else str(path)
        self._overwrite = overwrite
        self._flush = is_stdout(path)
        self._target: Path | None = None  # None if lines are written directly
        self._closing = ExitStack()
        if path is None or self._flush:
            if sys.stdout is None:
                raise StorageError("cannot write standard output: it is closed; name a file instead")
            self._lines = self._file = sys.stdout.buffer
            return
        with storage_errors(self._name, full=_FULL_ADVICE), ExitStack() as stack:
            self._lines = self._file = self._open(Path(path), inputs, stack)
            self._closing = stack.pop_all()
        if self._name.endswith(".gz"):
            self._lines = cast(BinaryIO, gzip.GzipFile("", "wb", fileobj=self._file, mtime=0))

    def _open(self, path: Path, inputs: Iterable[str | Path | int], stack: ExitStack) -> BinaryIO:
        """Open a file to write to; the stack has what closes and removes it."""
        if not self._name:
            raise UserError("the name of the output is empty: is a variable unset?")
        # A device or a pipe is written to. A file is replaced.
        if path.exists() and not path.is_file() and not path.is_dir():
            file = path.open("wb")
        else:
            self._target = check_output_file(path, inputs)
            self._unfinished = self._target.with_name(f".{self._target.name}.unfinished")
            busy = f"another command is writing {self._name} ({{owner}}): wait for it, or give another name"
            stack.enter_context(hold_lock(self._target.with_name(f".{self._target.name}.lock"), busy))
            if self._target.exists() and not self._overwrite:
                raise already_exists(self._name)
            self._unfinished.unlink(missing_ok=True)  # left by a command that was killed
            file = self._unfinished.open("xb")
            stack.callback(self._unfinished.unlink, missing_ok=True)
        return stack.enter_context(file)

    def write(self, line: str, end: str = "\n") -> None:
        """Write a line."""
        with storage_errors(self._name, full=_FULL_ADVICE):
            self._lines.write(f"{line}{end}".encode())
            if self._flush:
                self._lines.flush()

    def finish(self) -> None:
        """Flush the lines; call it once all are written."""
        with storage_errors(self._name, full=_FULL_ADVICE):
            if self._lines is not self._file:
                self._lines.close()  # writes the end of the gzipped data
            self._file.flush()

    def publish(self) -> None:
        """Move the file to its place."""
        if self._target is None:
            return
        with storage_errors(self._name, full=_FULL_ADVICE):
            try:
                if self._overwrite:
                    self._unfinished.replace(self._target)
                else:
                    move_to_new(self._unfinished, self._target)
            except FileExistsError:
                raise already_exists(self._name) from None

    def close(self) -> None:
        """Close the file, and remove what was not published."""
        with suppress(OSError):  # a write error has been reported already
            self._closing.close()


def check_output_file(path: str | Path, inputs: Iterable[str | Path | int] = ()) -> Path:
    """Check that a text file can be created or replaced at a path. Returns it; of a link, the file that it points to.

    ``inputs`` are files, or their open descriptors, that are never replaced.

    Raises:
        UserError: The file is an input, or would be part of a corpus, a checkpoint, a bundle or a run.
        StorageError: The path is a folder, or its parent is none.
    """
    if Path(path).is_dir():
        raise StorageError(f"cannot write {path}: it is a folder; name a file in it")
    check_text_output(Path(path))
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise StorageError(f"cannot write {path}: {target.parent} is not a folder; make it first, or give another name")
    if any(_is_same(source, target) for source in inputs):
        raise UserError(f"{path} is an input of this command and would be replaced: give another name")
    return target


def already_exists(path: str | Path) -> UserError:
    """The error for an output that exists and may not be replaced."""
    return UserError(f"{path} already exists: replace it with --overwrite, or give another name")


def is_same_file(one: str | Path, other: str | Path) -> bool:
    """Tell whether two paths name the same file, also through links and if it does not exist yet."""
    return os.path.realpath(one) == os.path.realpath(other) or _is_same(one, Path(other))


def _is_same(source: str | Path | int, target: Path) -> bool:
    try:
        return os.path.samestat(os.stat(source), target.stat())  # noqa: PTH116
    except OSError:
        return False


def iter_file_pairs(src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of two text files.

    Raises:
        DataError: A file cannot be read, or one has more lines.
    """
    for count, (source, target) in enumerate(zip_longest(iter_lines(src), iter_lines(tgt)), 1):
        if source is None or target is None:
            short, long = (src, tgt) if source is None else (tgt, src)
            raise DataError(
                f"{short} has {counted(count - 1, 'line')} but {long} has more: line n of one must translate line n "
                "of the other"
            )
        yield source, target
