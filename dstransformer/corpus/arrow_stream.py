"""What an Arrow stream may hold here, checked before its columns are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

#: Places of fields in the tables of Arrow's ``Message.fbs``: ``Message.header`` and ``RecordBatch.compression``.
_HEADER, _COMPRESSION = 2, 3


def check_plain_stream(path: Path) -> None:
    """Refuse a stream with compressed columns or dictionaries, which this project never writes.

    A compressed column states its own size, and Arrow takes as much memory before it looks at the data. The file is
    mapped, and only headers are read.

    Raises:
        pa.ArrowException: It is such a stream, or none at all.
        OSError: The file cannot be read.
    """
    with pa.memory_map(str(path)) as file:
        messages = pa.ipc.MessageReader.open_stream(file)
        while True:
            try:
                message = messages.read_next_message()
            except StopIteration:
                return
            if message.type == "record batch":
                if _is_compressed(memoryview(message.metadata)):
                    raise pa.ArrowInvalid("its columns are compressed")
            elif message.type != "schema":
                raise pa.ArrowInvalid(f"it holds a {message.type}")


def _is_compressed(message: memoryview) -> bool:
    """Whether a message with the header of a record batch, as FlatBuffers writes it, states a compression.

    Arrow has verified that all offsets are inside.
    """
    root = int.from_bytes(message[:4], "little")
    slot = root + _offset(message, root, _HEADER)
    batch = slot + int.from_bytes(message[slot : slot + 4], "little")
    return _offset(message, batch, _COMPRESSION) != 0


def _offset(message: memoryview, table: int, field: int) -> int:
    """Where a field is in a table, counted from the table's beginning; 0 if the table lacks it."""
    fields = table - int.from_bytes(message[table : table + 4], "little", signed=True)
    place, size = 4 + 2 * field, int.from_bytes(message[fields : fields + 2], "little")
    return int.from_bytes(message[fields + place : fields + place + 2], "little") if place < size else 0
