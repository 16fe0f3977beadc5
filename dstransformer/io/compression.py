"""Reads files compressed by gzip, xz, bzip2 or zstd. The first bytes tell the format, not the name."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from io import BufferedReader
from typing import Any

from dstransformer.errors import ConfigError

#: The first bytes of each format.
MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}

#: The endings of file names.
ENDINGS = (".gz", ".xz", ".bz2", ".zst")

#: Maximum bytes of memory for xz. A file states how many it needs; the highest level of xz needs 65 MiB.
MAX_MEMORY = 2**28

#: Compressed bytes to unpack at a time. A decompression bomb makes about 30 MB of them.
BLOCK = 1 << 10


class DamagedDataError(Exception):
    """Compressed data are truncated or damaged. The message, such as ``the xz data are damaged``, says which."""


def without_ending(name: str) -> str:
    """A file name without the ending of a compressed file."""
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def format_of(beginning: bytes) -> str | None:
    """The format of data that begin with these bytes; None if they are not compressed."""
    return next((name for magic, name in MAGIC.items() if beginning.startswith(magic)), None)


class Unpacker:
    """Unpacks data of a :func:`format_of` as they arrive: all parts, one after the other. The last must be complete.

    Raises:
        ConfigError: The package for zstd is not installed.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._part = _decompressor(kind)
        self._begun = False  # the current part

    def feed(self, data: bytes) -> bytes:
        """Unpack more data, :data:`BLOCK` bytes at most. No data is the end.

        Raises:
            DamagedDataError: The data are truncated or damaged.
        """
        if not data and self._begun and not self._part.eof:
            raise DamagedDataError(f"the {self._kind} data are truncated")
        unpacked = b""
        while data:
            if self._part.eof:
                self._part, self._begun = _decompressor(self._kind), False
            if not self._begun and self._kind in ("gzip", "xz") and not (data := data.lstrip(b"\0")):
                break  # padding between the parts
            try:
                unpacked += self._part.decompress(data)
            except Exception as error:  # each library has its own
                raise DamagedDataError(f"the {self._kind} data are damaged") from error
            self._begun = True
            data = self._part.unused_data
        return unpacked


class _Unpacked(io.RawIOBase):
    """The content of a compressed file."""

    def __init__(self, file: BufferedReader, kind: str) -> None:
        self._file, self._unpacker = file, Unpacker(kind)
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready:
            data = self._file.read(BLOCK)
            self._ready = memoryview(self._unpacker.feed(data))
            if not data:
                return 0
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def decompressed(file: BufferedReader) -> BufferedReader:
    """The content of a file, at its beginning; of a compressed one that of all its parts, one after the other.

    Raises:
        DamagedDataError: While reading, if the data are truncated or damaged.
        ConfigError: The package for zstd is not installed.
    """
    kind = format_of(file.peek(6))
    return file if kind is None else BufferedReader(_Unpacked(file, kind), 1 << 16)


def _decompressor(kind: str) -> Any:
    if kind == "gzip":
        return zlib.decompressobj(wbits=31)
    if kind == "xz":
        return lzma.LZMADecompressor(memlimit=MAX_MEMORY)
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    try:
        import zstandard
    except ImportError:
        raise ConfigError("a file compressed by zstd needs the package zstandard: `pip install zstandard`") from None
    return zstandard.ZstdDecompressor().decompressobj()
