"""Sentence pairs between the stages: Arrow tables with the columns ``src`` and ``tgt``, streamed through files."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.progress import Task
from dstransformer.corpus.writer import sync

SCHEMA = pa.schema([("src", pa.string()), ("tgt", pa.string())])

# Rows handed to the workers at a time: this many are in memory.
_SLICE_ROWS = 100_000
_BATCH_ROWS = 2_000


class PairsWriter:
    """Writes an Arrow stream of pairs, batch by batch; on disk when the block ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = pa.ipc.new_stream(str(path), SCHEMA)
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append a table of `SCHEMA`."""
        self._stream.write_table(table)
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
    """The batches of a file of pairs, memory-mapped."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def count_pairs(path: Path) -> int:
    """Rows of a file of pairs."""
    return sum(batch.num_rows for batch in iter_pairs(path))


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
    """
    import datasets

    datasets.disable_progress_bars()
    dataset = datasets.Dataset.from_file(str(path)).with_format("arrow")
    for begin in range(0, len(dataset), _SLICE_ROWS):
        part = dataset.select(range(begin, min(begin + _SLICE_ROWS, len(dataset))))
        with _interrupted_later():
            mapped = part.map(
                function,
                batched=True,
                batch_size=_BATCH_ROWS,
                fn_kwargs=given,
                num_proc=_processes(len(part), workers),
                remove_columns=dataset.column_names,
                keep_in_memory=True,
                load_from_cache_file=False,
                new_fingerprint=f"{path.stem}-{begin}",
            )
        task.advance(len(part))
        yield mapped.data.table


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Hold an interrupt from the keyboard back until the block ends: it reaches the workers too, who ignore it."""
    interrupts: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        raise KeyboardInterrupt


def _processes(rows: int, workers: int) -> int | None:
    """Processes worth starting for ``rows``; None is this one."""
    useful = min(workers, rows // _BATCH_ROWS)
    return useful if useful > 1 else None
