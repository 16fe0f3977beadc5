"""Files of sentence pairs: Arrow streams with the columns of ``SCHEMA``, cut into chunks for workers."""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.store.chunks import Report
from dstransformer.data.arrow_stream import check_plain_stream
from dstransformer.errors import DataError
from dstransformer.io.files import sync

#: What a source streams.
TEXT = pa.schema([("src", pa.string()), ("tgt", pa.string())])

#: A pair in the work folder: ``part`` is the number of its source, ``low`` whether its score is too low, ``alignment``
#: the links between its words, null if it has none, ``file`` the number of its file among those of all sources.
SCHEMA = (
    TEXT.append(pa.field("part", pa.uint16()))
    .append(pa.field("low", pa.bool_()))
    .append(pa.field("alignment", pa.string()))
    .append(pa.field("file", pa.uint32()))
)

# Maximum dropped pairs that are kept as examples of a rule, and maximum characters of each side.
_MAX_EXAMPLES = 5
_MAX_EXAMPLE_LENGTH = 300

# Rows of a batch.
_BATCH_ROWS = 2_000

# Batches of a chunk: enough that sending it to a worker costs little, few enough that a lost one costs seconds. Between
# these bounds a file is cut into about _CHUNKS chunks. A file of more than 200 million pairs is cut into _MAX_CHUNKS
# larger ones, so that their files and reports stay few.
_MIN_BATCHES = 4
_MAX_BATCHES = 25
_CHUNKS = 128
_MAX_CHUNKS = 4096

# What ends an Arrow stream: the mark of a message, and its length.
_END = b"\xff\xff\xff\xff\0\0\0\0"


def text_table(src: Sequence[str], tgt: Sequence[str]) -> pa.Table:
    """Return pairs as a source streams them."""
    return pa.table([pa.array(src, pa.string()), pa.array(tgt, pa.string())], schema=TEXT)


@dataclass(frozen=True)
class Chunk:
    """Consecutive batches of a file of pairs, the unit of work of a worker.

    Attributes:
        path: The file.
        number: Its position among the chunks of the file, from 0.
        first: The row of its first pair in the file.
        offset: The byte at which the first batch begins.
        batches: Number of batches.
        rows: Number of pairs.
    """

    path: Path
    number: int
    first: int
    offset: int
    batches: int
    rows: int


@dataclass(frozen=True)
class Index:
    """Where the batches of a file of pairs are: 16 bytes for each, so that one can be read without those before it.

    Attributes:
        offsets: The byte at which each begins, ``(batches,)``.
        firsts: The number of the first pair of each, and the number of pairs of all, ``(batches + 1,)``.
    """

    offsets: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]


class PairsWriter(AbstractContextManager["PairsWriter"]):
    """Writes an Arrow stream of pairs, batch by batch. Use it as a context manager.

    At its end the file is flushed to disk, unless it is not ``durable``.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self._stream = pa.ipc.new_stream(str(path), SCHEMA)
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append a table of ``SCHEMA``; its columns ``alignment`` and ``file`` may be missing."""
        if "alignment" not in table.column_names:
            table = table.append_column("alignment", pa.nulls(table.num_rows, pa.string()))
        if "file" not in table.column_names:
            table = table.append_column("file", pa.array(np.zeros(table.num_rows, dtype=np.uint32)))
        table = table.select(SCHEMA.names).cast(SCHEMA)
        self._stream.write_table(table, max_chunksize=_BATCH_ROWS)
        self.rows += table.num_rows

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        if kind is None and self._durable:
            sync(self._path)


def iter_pairs(path: Path) -> Iterator[pa.RecordBatch]:
    """Iterate over the batches of a file of pairs.

    The file is read, not mapped, so that one batch at a time is in memory.

    Raises:
        DataError: The file is damaged or gone.
    """
    with _whole(path), pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    with _readable(path):
        check_plain_stream(path)
        yield


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path} is damaged or gone ({reason}): remove {path.parent}, then run `dst-prep {path.parent.name}` or "
            "`dst-prep build` again"
        ) from None


def count_pairs(path: Path) -> int:
    """Count the rows of a file of pairs. It is memory-mapped, and only batch headers are read."""
    return int(index_pairs(path).firsts[-1])


def count_files(path: Path, files: int) -> list[int]:
    """Count the pairs of each of ``files`` files. The file is memory-mapped, and one column read."""
    counts = np.zeros(files, dtype=np.int64)
    with _whole(path), pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            counts += np.bincount(batch["file"].to_numpy(), minlength=files)
    return [int(count) for count in counts]


def add_examples(examples: list[tuple[str, str]], table: pa.Table, drops: npt.NDArray[np.bool_]) -> None:
    """Add the first pairs that a rule drops of a table, until there are enough."""
    rows = np.flatnonzero(drops)[: _MAX_EXAMPLES - len(examples)]
    for pair in table.select(["src", "tgt"]).take(rows).to_pylist() if len(rows) else ():
        examples.append((shortened(pair["src"], _MAX_EXAMPLE_LENGTH), shortened(pair["tgt"], _MAX_EXAMPLE_LENGTH)))


def merge_examples(examples: list[tuple[str, str]], more: Iterable[tuple[str, str]]) -> None:
    """Add the examples of a later chunk, until there are enough."""
    examples += list(more)[: _MAX_EXAMPLES - len(examples)]


def shortened(text: str, length: int) -> str:
    """A text of at most ``length`` characters, for display; the last is an ellipsis if some are left out."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


class Kept(Report):
    """The pairs of a chunk that are kept and dropped, by part, and the first dropped ones."""

    parts: list[int]
    dropped: list[int]
    examples: list[tuple[str, str]]


def write_kept(tables: Iterable[pa.Table], keep: npt.NDArray[np.bool_], target: Path, parts: int) -> Kept:
    """Write the rows of tables for which ``keep``, ``(rows,)``, is true, as the file of a chunk."""
    begin, counts, examples = 0, np.zeros((2, parts), dtype=np.int64), list[tuple[str, str]]()
    with PairsWriter(target, durable=False) as writer:
        for table in tables:
            kept = keep[begin : begin + table.num_rows]
            begin += table.num_rows
            writer.write(table.filter(pa.array(kept)))
            add_examples(examples, table, ~kept)
            np.add.at(counts, (kept.astype(np.int64), table["part"].to_numpy()), 1)
    return Kept(parts=counts[1].tolist(), dropped=counts[0].tolist(), examples=examples)


def join_pairs(paths: Iterable[Path], target: Path, *, durable: bool = True) -> None:
    """Concatenate files of pairs without decoding them, and flush the result to disk if it is ``durable``."""
    empty = pa.BufferOutputStream()
    with pa.ipc.new_stream(empty, SCHEMA):
        pass
    head = empty.getvalue().to_pybytes().removesuffix(_END)
    with target.open("wb") as file:
        file.write(head)
        for path in paths:
            file.write(memoryview(path.read_bytes())[len(head) : -len(_END)])
        file.write(_END)
    if durable:
        sync(target)


def index_pairs(path: Path) -> Index:
    """Find the batches of a file of pairs. It is memory-mapped, and only batch headers are read.

    Raises:
        DataError: The file is damaged or gone.
    """
    offsets, rows = [], [0]
    with _whole(path), pa.memory_map(str(path)) as file:
        messages = pa.ipc.MessageReader.open_stream(file)
        messages.read_next_message()  # the schema
        begin = file.tell()
        for message in messages:
            offsets.append(begin)
            rows.append(pa.ipc.read_record_batch(message, SCHEMA).num_rows)
            begin = file.tell()
    return Index(np.array(offsets, dtype=np.int64), np.cumsum(rows, dtype=np.int64))


def cut_pairs(path: Path, index: Index | None = None) -> list[Chunk]:
    """Cut a file of pairs into chunks, by its rows.

    Args:
        path: The file.
        index: Its index; None to read it.

    Raises:
        DataError: The file is damaged or gone.
    """
    index = index or index_pairs(path)
    batches = len(index.offsets)
    size = min(max(_MIN_BATCHES, -(-batches // _CHUNKS)), _MAX_BATCHES)
    size = max(size, -(-batches // _MAX_CHUNKS))
    begins = np.arange(0, batches, size)
    ends = np.minimum(begins + size, batches)
    columns = begins, ends, index.firsts[begins], index.firsts[ends], index.offsets[begins]
    return [
        Chunk(path, number, first, offset, end - begin, last - first)
        for number, (begin, end, first, last, offset) in enumerate(np.column_stack(columns).tolist())
    ]


def iter_chunk(chunk: Chunk) -> Iterator[pa.Table]:
    """Iterate over the batches of a chunk.

    Raises:
        DataError: The file is damaged or gone.
    """
    with _readable(chunk.path), pa.OSFile(str(chunk.path)) as file:
        file.seek(chunk.offset)
        for _ in range(chunk.batches):
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(file), SCHEMA)
            yield pa.Table.from_batches([batch])


def take_pairs(path: Path, rows: npt.NDArray[np.integer[Any]], index: Index) -> pa.Table:
    """Copy rows out of a file of pairs, by their numbers in ascending order.

    The file is memory-mapped during the call, and only the pages of these rows are read.

    Raises:
        DataError: The file is damaged or gone.
    """
    batch_of = np.searchsorted(index.firsts, rows, side="right") - 1
    numbers, begins = np.unique(batch_of, return_index=True)
    batches = []
    with _readable(path), pa.memory_map(str(path)) as file:
        for number, part in zip(numbers.tolist(), np.split(rows, begins[1:]), strict=False):
            file.seek(int(index.offsets[number]))
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(file), SCHEMA)
            batches.append(batch.take(pa.array(part - index.firsts[number])))
        return pa.Table.from_batches(batches, SCHEMA)
