"""Runs the tasks of a stage in processes on this machine, or in any executor, such as a cluster's (``cluster.py``).

The processes exit when the command exits, however it does, and leave the handling of interrupts to it.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import TypeVar

from dstransformer.errors import DstError

Task = TypeVar("Task")
Result = TypeVar("Result")

#: A number of processes on this machine, or an executor.
Workers = int | Executor

# Tasks queued for each process: enough to keep it busy, few enough to bound memory.
_QUEUED_PER_PROCESS = 3

# Tasks queued for an executor without an attribute ``max_queued``.
_MAX_QUEUED = 64


@contextmanager
def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], workers: Workers
) -> Iterator[Iterator[Result]]:
    """Run ``function`` on each task. Yields an iterator over the results, in the order of the tasks.

    Function, tasks and results are pickled, so they should be small: what is large is read and written by the workers.
    Tasks that have not begun when the block ends are cancelled.

    Raises:
        DstError: In the block: a worker was killed, or the scheduler of the cluster is lost.
    """
    if not isinstance(workers, int):
        with closing(_iter_results(function, tasks, workers, getattr(workers, "max_queued", _MAX_QUEUED))) as results:
            yield results
        return
    processes = min(workers, len(tasks))
    if processes < 2:
        yield map(function, tasks)
        return
    pool = ProcessPoolExecutor(processes, initializer=_init_process)
    try:
        with closing(_iter_results(function, tasks, pool, _QUEUED_PER_PROCESS * processes)) as results:
            yield results
    finally:
        pool.shutdown(cancel_futures=True)


def list_results(function: Callable[[Task], Result], tasks: Sequence[Task], workers: Workers) -> list[Result]:
    """Run ``function`` on each task, see :func:`run_tasks`, and return the results."""
    with run_tasks(function, tasks, workers) as results:
        return list(results)


def _iter_results(
    function: Callable[[Task], Result], tasks: Sequence[Task], executor: Executor, max_queued: int
) -> Generator[Result, None, None]:
    pending: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            with _signals_blocked():  # a pool starts processes on submission
                pending.append(executor.submit(function, task))
            if len(pending) > max_queued:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise DstError(
            "a worker process was killed, perhaps because memory ran out: run the command again, with fewer --workers"
        ) from None
    except BrokenExecutor as error:
        raise DstError(str(error)) from None
    finally:
        for future in pending:
            future.cancel()


def run_in_process(function: Callable[[], bytes]) -> bytes:
    """Run ``function`` in a separate process, so that a long call can be interrupted; return or raise its outcome.

    The process has none of this one's threads and libraries: SentencePiece crashes in a copy of a process that has used
    PyTorch.

    Raises:
        DstError: The process was killed.
    """
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_outcome, args=(function, sender))
    with _signals_blocked():
        process.start()
    sender.close()
    try:
        outcome: bytes | Exception = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        raise DstError(
            f"the process that trains the vocabulary {how}, perhaps because memory ran out: "
            "run the command again, with a smaller --tokenizer-sample"
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _send_outcome(function: Callable[[], bytes], sender: Connection) -> None:
    _init_process()
    try:
        outcome: bytes | Exception = function()
    except Exception as error:
        outcome = error
    sender.send(outcome)


def _init_process() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent is killed; this process would wait forever for work."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals, also in processes started in the block; this process receives them after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
