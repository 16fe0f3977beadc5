"""Checks what an Arrow stream holds before its columns are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

#: Positions of fields in the tables of Arrow's ``Message.fbs``: ``Message.header``, ``RecordBatch.buffers`` and
#: ``RecordBatch.compression``.
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3


def check_plain_stream(path: Path) -> None:
    """Refuse a stream with compressed columns or dictionaries, which this project never writes.

    The file is mapped, and only headers are read.

    Raises:
        pa.ArrowException: The file has compressed columns or dictionaries, or is not an Arrow stream.
        OSError: The file cannot be read.
    """
    with pa.memory_map(str(path)) as file:
        check_batches(file, max_bytes=0)


def check_batches(file: pa.NativeFile, max_bytes: int) -> None:
    """Refuse a stream with dictionaries, or with a batch whose compressed columns state more than ``max_bytes``.

    A compressed column states its own size, and Arrow allocates that much memory before it reads the data.

    Args:
        file: A mapped file, at the beginning of the stream.
        max_bytes: Limit of the stated bytes; 0 refuses all compression.

    Raises:
        pa.ArrowException: The stream has dictionaries or such a batch, or is not an Arrow stream.
    """
    for message in pa.ipc.MessageReader.open_stream(file):
        if message.type == "record batch":
            # Where the table of the batch begins, as FlatBuffers writes it. Arrow has verified that offsets are inside.
            header = memoryview(message.metadata)
            root = int.from_bytes(header[:4], "little")
            slot = root + _offset(header, root, _HEADER)
            batch = slot + int.from_bytes(header[slot : slot + 4], "little")
            if _offset(header, batch, _COMPRESSION):
                if not max_bytes:
                    raise pa.ArrowInvalid("its columns are compressed")
                if (stated := _stated_bytes(header, batch, message.body)) > max_bytes:
                    raise pa.ArrowInvalid(f"a batch states {stated:,} bytes, more than {max_bytes:,}")
        elif message.type != "schema":
            raise pa.ArrowInvalid(f"it holds a {message.type}")


def _stated_bytes(message: memoryview, batch: int, body: pa.Buffer | None) -> int:
    """The size of all compressed columns of a batch as they state it, each in its first eight bytes; -1 is plain."""
    data = memoryview(body if body is not None else b"")
    slot = batch + _offset(message, batch, _BUFFERS)
    vector = slot + int.from_bytes(message[slot : slot + 4], "little")
    total = 0
    for number in range(int.from_bytes(message[vector : vector + 4], "little")):
        place = vector + 4 + 16 * number
        begin, length = (int.from_bytes(message[at : at + 8], "little", signed=True) for at in (place, place + 8))
        if length and not 0 <= begin <= begin + length <= len(data):
            raise pa.ArrowInvalid("a column lies outside of its batch")
        stated = int.from_bytes(data[begin : begin + 8], "little", signed=True) if length else 0
        if stated < -1:
            raise pa.ArrowInvalid(f"a column states {stated} bytes")
        total += length if stated == -1 else stated
    return total


def _offset(message: memoryview, table: int, field: int) -> int:
    """Where a field is in a table, counted from the table's beginning; 0 if the table lacks it."""
    fields = table - int.from_bytes(message[table : table + 4], "little", signed=True)
    place, size = 4 + 2 * field, int.from_bytes(message[fields : fields + 2], "little")
    return int.from_bytes(message[fields + place : fields + place + 2], "little") if place < size else 0
