"""Finds the texts that names stand for, identifies their content, and checks that no file changes while it is read."""

import glob
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from data_prep.recipe.names import Address
from data_prep.sources.texts import Text, local_text
from dstransformer.data import InputFile
from dstransformer.errors import DataError
from dstransformer.io.files import file_sha256, matching
from dstransformer.io.progress import Progress

Stream = Callable[[], Iterator[pa.Table]]
Names = tuple[Path | Address, ...]

#: Files with their status before they were hashed.
Stats = dict[Path, os.stat_result]


class Finder:
    """Finds the texts that names stand for."""

    def __init__(self, cache: Path | None, progress: Progress, *, offline: bool) -> None:
        """Look for files here, and for downloads in the folder ``cache``; None is the default one."""
        self._cache, self._progress, self._offline = cache, progress, offline

    def groups(self, sides: Sequence[Names], languages: tuple[str, str]) -> list[tuple[Text, ...]]:
        """The texts of all sides, with those that translate each other beside each other.

        One side holds both ``languages``.

        Raises:
            DataError: A pattern fits no file, or the sides have different numbers of files.
        """
        if len(sides) == 1:
            return [(text,) for name in sides[0] for text in self._texts(name, languages)]
        found = [self.texts(side) for side in sides]
        if len({len(texts) for texts in found}) > 1:
            counts = " and ".join(
                f"{' '.join(map(str, names))} {len(t)}" for names, t in zip(sides, found, strict=True)
            )
            raise DataError(
                f"the sides have different numbers of files ({counts}): file n of one must translate file n"
            )
        return list(zip(*found, strict=True))

    def texts(self, names: Names) -> list[Text]:
        """The texts of one language that names, patterns such as ``part-*.en.gz`` and addresses stand for.

        Raises:
            UserError: A corpus of OPUS is not wanted here.
            DataError: A pattern fits no file, or a file cannot be downloaded.
        """
        return [text for name in names for text in self._texts(name, None)]

    def _texts(self, name: Path | Address, languages: tuple[str, str] | None) -> list[Text]:
        if isinstance(name, Path):
            if name.exists() or not glob.has_magic(str(name)):
                return [local_text(name)]
            if found := [local_text(file) for file in matching(name) if not file.is_dir()]:
                return found
            raise DataError(f"no file fits {name}: check the pattern and its folder")
        from data_prep.sources.remote import default_cache, fetch_texts, named_file

        name = named_file(name, languages)
        return fetch_texts(name, self._cache or default_cache(), self._progress, offline=self._offline)


def identify(text: Text, stats: Stats) -> InputFile:
    """Return a file's name and hash. Its status before it was hashed goes into ``stats``."""
    try:
        found = text.path.stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            if stat.S_ISSOCK(found.st_mode):
                raise DataError(f"{text} is a socket: name a file")
            raise DataError(f"{text} is a pipe or a device, but is read more than once: save it to a file first")
        sha256 = _hash(text.path, found.st_mtime_ns, found.st_size)
        identified = InputFile(name=text.label, sha256=sha256, size=found.st_size)
    except OSError as error:
        if str(text.path) == "-":
            raise DataError("standard input is not read here: name a file") from None
        raise DataError(f"cannot read {text}: {error.strerror}") from None
    if not found.st_size:
        raise DataError(f"{text} is empty")
    stats[text.path] = found
    return identified


@lru_cache
def _hash(path: Path, _: int, __: int) -> str:
    """The hash of a file, computed once for all members of an archive as long as its time and size stay."""
    return file_sha256(path)


def read_unchanged(stream: Stream, stats: Stats) -> Iterator[pa.Table]:
    """Yield from a stream of pairs, then check that no file has changed.

    Args:
        stream: The stream.
        stats: Its files with their status before they were hashed.

    Raises:
        DataError: A file was changed or removed while the stream was read.
    """
    yield from stream()
    for path, before in stats.items():
        try:
            now = path.stat()
        except OSError as error:
            raise DataError(f"{path} vanished while it was read: {error.strerror}") from None
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
            raise DataError(f"{path} changed while it was read: run the command again when it is complete")
