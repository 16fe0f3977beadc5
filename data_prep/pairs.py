"""Sentence pairs between the stages: Arrow tables with the columns ``src`` and ``tgt``, streamed through files."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.progress import Task
from dstransformer.corpus.writer import sync
from dstransformer.errors import DstError

SCHEMA = pa.schema([("src", pa.string()), ("tgt", pa.string())])

# Rows of a batch: what a worker is given at a time.
_BATCH_ROWS = 2_000
# Batches under way for each worker: it need not wait for the next, and memory stays bounded.
_AHEAD = 3


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
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def count_pairs(path: Path) -> int:
    """Rows of a file of pairs; of the file, mapped into memory, only what says how long each batch is gets read."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
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
    with closing(_map_in_processes(tables, partial(function, **given), useful)) as mapped:
        for rows, result in mapped:
            yield result
            task.advance(rows)


def _map_in_processes(
    tables: Iterator[pa.Table], function: Callable[[pa.Table], pa.Table], workers: int
) -> Generator[tuple[int, pa.Table], None, None]:
    """The rows of each table and what became of it, in order; only a few tables are under way at a time."""
    pool = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(function,))
    under_way: deque[tuple[int, Future[pa.Table]]] = deque()
    try:
        for table in tables:
            with _interrupts_blocked():  # the pool starts processes when it is given work
                under_way.append((table.num_rows, pool.submit(_work, table)))
            if len(under_way) > _AHEAD * workers:
                rows, result = under_way.popleft()
                yield rows, result.result()
        for rows, result in under_way:
            yield rows, result.result()
    except BrokenProcessPool:
        raise DstError(
            "a worker process was killed, perhaps for want of memory: run the command again, with fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_function: Callable[[pa.Table], pa.Table]  # a worker's


def _start_worker(function: Callable[[pa.Table], pa.Table]) -> None:
    global _function  # noqa: PLW0603
    _function = function
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker would wait for ever for work from a process that was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(table: pa.Table) -> pa.Table:
    return _function(table)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started in the block never see an interrupt from the keyboard; this one sees it after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
