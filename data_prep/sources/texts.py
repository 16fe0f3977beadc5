"""Texts in files and in members of archives (``FILE.tgz::MEMBER``), plain, compressed or in SGM."""

from __future__ import annotations

import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from io import BufferedReader
from lzma import LZMAError
from pathlib import Path
from typing import Any, Self, cast

from data_prep.recipe.names import printable_name
from dstransformer.errors import DataError, shown
from dstransformer.io.compression import DamagedDataError, decompressed, without_ending
from dstransformer.io.text import iter_text

#: Separates the name of an archive from that of its member.
SEPARATOR = "::"

#: The endings of archives, without that of a compression.
_ARCHIVES = (".tar", ".tgz", ".tbz2", ".txz", ".zip")

_ZIP_MAGIC = b"PK\x03\x04"

#: Errors of the readers of archives on damaged ones.
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, LZMAError, DamagedDataError,
    ValueError, OverflowError, NotImplementedError, RuntimeError,
)  # fmt: skip

#: Maximum bytes of a header in a tar archive, such as one with a long name.
_MAX_HEADER_BYTES = 2**20

#: Maximum names of members that are kept, for the error that a member is missing.
_MAX_NAMES = 1000

_SEG_TAG = re.compile(r"<(/?)seg\b[^<>]*>", re.IGNORECASE)


#: The sentence of the source side and that of the target side.
Pair = tuple[str, str]


@dataclass(frozen=True)
class Text:
    """A text on this machine. ``str`` gives its name for messages.

    Attributes:
        path: The file, or the archive that the text is in.
        member: Its name in the archive; empty if the file is the text.
        name: Its name in messages.
        label: Its name in the manifest.
    """

    path: Path
    member: str
    name: str
    label: str

    def __str__(self) -> str:
        return self.name

    @property
    def archive(self) -> str:
        """The name in messages of the file that is read."""
        return self.name.removesuffix(f"{SEPARATOR}{self.member}") if self.member else self.name

    @property
    def ending(self) -> str:
        """The last ending of its name in lower case, without that of a compression."""
        return Path(without_ending((self.member or self.path.name).lower())).suffix


def local_text(path: Path) -> Text:
    """The text with this name: a file, or a member of an archive."""
    archive, _, member = str(path).partition(SEPARATOR)
    return Text(Path(archive), member, str(path), printable_name(path))


def check_no_archive(text: Text) -> None:
    """Refuse an archive without the name of a member.

    Raises:
        DataError: The text is an archive.
    """
    if not text.member and text.ending in _ARCHIVES:
        raise DataError(f"{text} is an archive: name the member to read, {text}{SEPARATOR}MEMBER")


def iter_sentences(text: Text) -> Iterator[str]:
    """Iterate over the sentences of a text: its lines, or in ``.sgm`` the segments.

    Raises:
        DataError: The file cannot be read, is damaged or is not text.
    """
    with opened(text) as file:
        lines = iter_text(file, str(text))
        yield from _iter_segments(lines, str(text)) if text.ending == ".sgm" else lines


@contextmanager
def opened(text: Text) -> Iterator[BufferedReader]:
    """Open a text for reading, as it is stored, compressed or not. A member is not unpacked to disk.

    Raises:
        DataError: The file cannot be read, is not an archive, or has no such member. Reading may raise it too.
    """
    try:
        with text.path.open("rb") as file:
            if not text.member:
                yield file
            elif file.peek(4).startswith(_ZIP_MAGIC):
                with _in_zip(file, text) as content:
                    yield content
            else:
                with _in_tar(file, text) as content:
                    yield content
    except _DAMAGE as error:
        if not text.member:
            raise
        kind = "zip archive" if isinstance(error, zipfile.BadZipFile | RuntimeError) else "tar archive"
        raise DataError(
            f"{text.archive} cannot be read as a {kind} ({shown(error, quote=False)}): copy it again"
        ) from None
    except OSError as error:
        if str(text.path) == "-":
            raise DataError("standard input is not read here: name a file") from None
        raise DataError(f"cannot read {text.archive}: {error.strerror or error}") from None


@contextmanager
def _in_tar(file: BufferedReader, text: Text) -> Iterator[BufferedReader]:
    names: list[str] = []
    with tarfile.open(fileobj=decompressed(file), mode="r|", tarinfo=_Entry) as tar:
        for entry in tar:
            if entry.isfile() and entry.name.removeprefix("./") == text.member.removeprefix("./"):
                yield cast(BufferedReader, tar.extractfile(entry))
                return
            if len(names) < _MAX_NAMES:
                names.append(entry.name)
            cast(Any, tar).members = []  # which would grow with the archive
    raise _missing(text, names)


class _Entry(tarfile.TarInfo):
    """A header of a tar archive. Headers with long names are read into memory, so their size is bounded."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        """See ``tarfile.TarInfo``."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type not in tarfile.REGULAR_TYPES and not 0 <= entry.size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header states {entry.size} bytes")
        return entry


@contextmanager
def _in_zip(file: BufferedReader, text: Text) -> Iterator[BufferedReader]:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if text.member not in names:
            raise _missing(text, names)
        with archive.open(text.member) as content:
            yield BufferedReader(cast(Any, content), 1 << 16)


def _missing(text: Text, names: list[str]) -> DataError:
    near = get_close_matches(text.member, names[:_MAX_NAMES], n=1, cutoff=0.4)
    hint = f"did you mean {shown(near[0])}?" if near else f"it has {shown(', '.join(names[:5]) or 'none', quote=False)}"
    return DataError(f"{text.archive} has no member {shown(text.member)}; {hint}")


def _iter_segments(lines: Iterator[str], name: str) -> Iterator[str]:
    """The segments of the test sets of WMT. Entities stay as they are, as in sacrebleu's copies of these sets."""
    found = False
    for number, line in enumerate(lines, 1):
        begin: int | None = None
        complete = True
        for tag in _SEG_TAG.finditer(line):
            if tag[1] and begin is not None:
                found = True
                yield " ".join(line[begin : tag.start()].split())
                begin = None
            elif not tag[1]:
                complete = complete and begin is None
                begin = tag.end()
        if begin is not None or not complete or ("<seg" in line.lower() and not _SEG_TAG.search(line)):
            raise DataError(f"{name}, line {number}: a segment that does not end on its line; write one a line")
    if not found:
        raise DataError(f"{name} has no segment <seg …>…</seg>: name it without .sgm if it is plain text")
