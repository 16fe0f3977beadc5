"""Lines of text wherever they are: in a file, in a member of a tar archive (``FILE.tgz::MEMBER``), in SGM."""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterator
from difflib import get_close_matches
from lzma import LZMAError
from pathlib import Path
from typing import cast

from dstransformer.compression import DamagedDataError, compression_of, decompressed
from dstransformer.errors import DataError
from dstransformer.textfiles import iter_lines, iter_text

#: Separates the name of an archive from that of its member.
SEPARATOR = "::"

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*)</seg>", re.IGNORECASE)


def archive_of(path: Path) -> Path:
    """The file that is read: the archive of a member, any other file itself."""
    return Path(str(path).partition(SEPARATOR)[0])


def iter_sentences(path: Path) -> Iterator[str]:
    """Iterate over the sentences of a text: its lines, or in ``.sgm`` the segments.

    Raises:
        DataError: It cannot be read, is damaged or is not text.
    """
    archive, separator, member = str(path).partition(SEPARATOR)
    lines = _iter_member(Path(archive), member) if separator else iter_lines(path)
    return _iter_segments(lines, str(path)) if ".sgm" in Path(member or archive).suffixes else lines


def _iter_segments(lines: Iterator[str], name: str) -> Iterator[str]:
    """The segments of the test sets of WMT. Entities stay as they are, as in sacrebleu's copies of these sets."""
    found = False
    for number, line in enumerate(lines, 1):
        if match := _SEGMENT.search(line):
            found = True
            yield " ".join(match[1].split())
        elif "<seg" in line.lower():
            raise DataError(f"{name}, line {number}: a segment that does not end on its line; write one a line")
    if not found:
        raise DataError(f"{name} has no segment <seg …>…</seg>: name it without .sgm if it is plain text")


def _iter_member(archive: Path, member: str) -> Iterator[str]:
    """The lines of a member, read from the archive as a stream, without unpacking it to disk."""
    names = []
    try:
        with archive.open("rb") as file:
            kind = compression_of(file)
            content = decompressed(file, kind) if kind else file
            with tarfile.open(fileobj=content, mode="r|") as tar:
                for entry in tar:
                    if entry.isfile() and entry.name.removeprefix("./") == member.removeprefix("./"):
                        yield from iter_text(_buffered(tar, entry), f"{archive}{SEPARATOR}{member}")
                        return
                    names.append(entry.name)
    except (tarfile.TarError, EOFError, zlib.error, LZMAError, DamagedDataError) as error:
        raise DataError(f"{archive} cannot be read as a tar archive ({error}): copy it again") from None
    except OSError as error:
        raise DataError(f"cannot read {archive}: {error.strerror or error}") from None
    near = get_close_matches(member, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:5]) or 'none'}"
    raise DataError(f"{archive} has no member {member!r}; {hint}")


def _buffered(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> "tarfile.ExFileObject":  # noqa: UP037
    return cast("tarfile.ExFileObject", tar.extractfile(entry))
