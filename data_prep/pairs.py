"""Sentence pairs between the stages: Arrow tables with the columns ``src`` and ``tgt``, streamed through files."""

import errno
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.progress import Task
from data_prep.workers import map_in_processes
from dstransformer.corpus.writer import sync
from dstransformer.errors import DataError

SCHEMA = pa.schema([("src", pa.string()), ("tgt", pa.string())])

# Rows of a batch: what a worker is given at a time.
_BATCH_ROWS = 2_000


class PairsWriter:
    """Writes an Arrow stream of pairs, batch by batch; on disk when the block ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = pa.ipc.new_stream(str(path), SCHEMA)
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append a table of `SCHEMA`."""
        self._stream.write_table(table, max_chunksize=_BATCH_ROWS)
        self.rows += table.num_rows

    def __enter__(self) -> "PairsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        if kind is None:
            sync(self._path)


def iter_pairs(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a file of pairs; read, not mapped, so that only one of them takes memory at a time."""
    with _whole(path), pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path} is damaged or gone ({reason}): remove {path.parent} and run the command again"
        ) from None


def count_pairs(path: Path) -> int:
    """Rows of a file of pairs; of the file, mapped into memory, only what says how long each batch is gets read."""
    with _whole(path), pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return sum(batch.num_rows for batch in stream)


def select_pairs(path: Path, mask: npt.NDArray[np.bool_], target: Path) -> None:
    """Copy the rows of a file of pairs where ``mask``, ``(rows,)``, is true."""
    begin = 0
    with PairsWriter(target) as writer:
        for batch in iter_pairs(path):
            kept = batch.filter(pa.array(mask[begin : begin + batch.num_rows]))
            writer.write(pa.Table.from_batches([kept]))
            begin += batch.num_rows


def map_pairs(
    path: Path, function: Callable[..., pa.Table], workers: int, task: Task, **given: Any
) -> Iterator[pa.Table]:
    """Run ``function(batch, **given)`` over a file of pairs in ``workers`` processes.

    Args:
        path: a file of pairs.
        function: a module-level function from a table of pairs to any table; it may return fewer rows.
        workers: processes; the result does not depend on it.
        task: is told of the rows of ``path`` that are done.
        given: further arguments of ``function``.

    Yields:
        The tables that came out, in the order of the file.

    Raises:
        DstError: a worker was killed.
    """
    tables = (pa.Table.from_batches([batch]) for batch in iter_pairs(path))
    useful = min(workers, count_pairs(path) // _BATCH_ROWS)
    if useful < 2:
        for table in tables:
            yield function(table, **given)
            task.advance(table.num_rows)
        return
    with closing(map_in_processes(tables, partial(function, **given), useful)) as mapped:
        for rows, result in mapped:
            yield result
            task.advance(rows)
