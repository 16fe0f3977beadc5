"""Reads files compressed by gzip, xz, bzip2 or zstd. The first bytes tell the format, not the name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from io import BufferedReader
from typing import Any, BinaryIO, cast

from dstransformer.errors import ConfigError

#: The first bytes of each format.
MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}

#: The endings of file names.
ENDINGS = (".gz", ".xz", ".bz2", ".zst")

#: Maximum bytes of memory for xz. A file states how many it needs; the highest level of xz needs 65 MiB.
MAX_MEMORY = 2**28

#: Compressed bytes that are unpacked at a time. A decompression bomb makes about 30 MB of them.
_BLOCK = 1 << 10


class DamagedDataError(Exception):
    """Compressed data are truncated or damaged; the message says which."""


def without_ending(name: str) -> str:
    """A file name without the ending of a compressed file."""
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def compression_of(file: BufferedReader) -> str | None:
    """The format of an open file, without advancing it; None if it is not compressed."""
    begin = file.peek(6)
    return next((name for magic, name in MAGIC.items() if begin.startswith(magic)), None)


def decompressed(file: BufferedReader, kind: str) -> BinaryIO:
    """The content of a compressed file: that of all its parts, one after the other.

    Args:
        file: The file, at its beginning.
        kind: Its format, from :func:`compression_of`.

    Raises:
        DamagedDataError: While reading, if the data are truncated or damaged.
        ConfigError: The package for zstd is not installed.
    """
    if kind == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    return cast(BinaryIO, BufferedReader(_Parts(file, kind), 1 << 16))


class _Parts(io.RawIOBase):
    """Compressed data, part by part; the last must be complete, which the libraries' own files do not all check."""

    def __init__(self, file: BufferedReader, kind: str) -> None:
        self._file = file
        self._kind = kind
        self._part = _decompressor(kind)
        self._fed = False  # whether the current part has begun
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """See ``io.RawIOBase``."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See ``io.RawIOBase``."""
        view = memoryview(buffer).cast("B")
        while not self._ready:
            if not self._decompress_more():
                return 0
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decompress_more(self) -> bool:
        """Decompress another block; False at the end.

        Raises:
            DamagedDataError: The data are truncated or damaged.
        """
        data = b""
        if self._part.eof:
            data = self._part.unused_data
            self._part, self._fed = _decompressor(self._kind), False
        data = data or self._file.read(_BLOCK)
        if not data:
            if self._fed:
                raise DamagedDataError("are truncated")
            return False
        if not self._fed and self._kind == "xz" and not (data := data.lstrip(b"\0")):
            return True  # padding between the parts
        try:
            self._ready = memoryview(self._part.decompress(data))
        except Exception as error:  # each library has its own
            raise DamagedDataError("are damaged") from error
        self._fed = True
        return True


def _decompressor(kind: str) -> Any:
    if kind == "xz":
        return lzma.LZMADecompressor(memlimit=MAX_MEMORY)
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    try:
        import zstandard
    except ImportError:
        raise ConfigError("a file compressed by zstd needs the package zstandard: `pip install zstandard`") from None
    return zstandard.ZstdDecompressor().decompressobj()
