"""Worker processes. They end with the command, however it ends, and leave the handling of interrupts to it."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import Connection

import pyarrow as pa

from dstransformer.errors import DstError

# Batches queued per worker: enough to keep it busy, few enough to bound memory.
_AHEAD = 3


def map_in_processes(
    tables: Iterator[pa.Table], function: Callable[[pa.Table], pa.Table], workers: int
) -> Generator[tuple[int, pa.Table], None, None]:
    """Apply ``function`` to each table and yield its row count and the result, in order; few tables are held in memory.

    Raises:
        DstError: A worker was killed.
    """
    pool = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(function,))
    under_way: deque[tuple[int, Future[pa.Table]]] = deque()
    try:
        for table in tables:
            with _signals_blocked():  # the pool starts processes on submission
                under_way.append((table.num_rows, pool.submit(_work, table)))
            if len(under_way) > _AHEAD * workers:
                rows, result = under_way.popleft()
                yield rows, result.result()
        for rows, result in under_way:
            yield rows, result.result()
    except BrokenProcessPool:
        raise DstError(
            "a worker process was killed, perhaps because memory ran out: run the command again, with fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def run_in_process(function: Callable[[], bytes]) -> bytes:
    """Run ``function`` in a process of its own, so that a long call can be interrupted; return or raise its outcome.

    Raises:
        DstError: The process was killed.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_send_outcome, args=(function, sender))
    with _signals_blocked():
        process.start()
    sender.close()
    try:
        outcome: bytes | Exception = receiver.recv()
    except EOFError:
        raise DstError(
            "the process that trains the vocabulary was killed, perhaps because memory ran out: "
            "run the command again, with a smaller --tokenizer-sample"
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _send_outcome(function: Callable[[], bytes], sender: Connection) -> None:
    _end_with_the_command()
    try:
        outcome: bytes | Exception = function()
    except Exception as error:
        outcome = error
    sender.send(outcome)


_function: Callable[[pa.Table], pa.Table]  # set in each worker


def _start_worker(function: Callable[[pa.Table], pa.Table]) -> None:
    global _function  # noqa: PLW0603
    _function = function
    _end_with_the_command()


def _end_with_the_command() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent is killed; it would wait forever for work."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(table: pa.Table) -> pa.Table:
    return _function(table)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals, also in processes started in the block; this process receives them after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
