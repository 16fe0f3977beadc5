"""What a process of a run leaves behind: its log, stacks and last collectives; and how the run ended."""

from __future__ import annotations

import errno
import faulthandler
import logging
import os
import platform
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from dstransformer import __version__
from dstransformer.distributed.launcher import Processes, launcher_name
from dstransformer.errors import DstError, PeerError, StorageError
from dstransformer.io.files import move_to_new, replace_file, storage_errors, write_durably
from dstransformer.io.json_text import read_record

#: The folder of logs in a run folder.
LOGS = "logs"

#: A log of more bytes becomes ``rank-NNNNN.log.1``, in place of the one before.
MAX_BYTES = 1_000_000

#: Name of the flight recorder's files, without the rank at their end, as PyTorch's ``torchfrtrace`` takes it.
TRACE_PREFIX = "trace_rank_"

#: In the run folder: how the run ended, see :class:`End`. In the folder of logs: who started it, see :class:`Start`.
END_NAME, START_NAME = "end.json", "start.json"

#: Causes for which supervision ends a run, see ``failure_detection.Verdict``.
VERDICTS = ("failed", "hung", "silent", "died", "connection")

Cause = Literal[
    "finished", "stopped", "interrupted", "memory", "full disk", "disk", "error", "bug",
    "failed", "hung", "silent", "died", "connection",
]  # fmt: skip

#: Collectives of each process that the flight recorder keeps.
_COLLECTIVES = 2000

#: Records kept before the run folder exists.
_EARLY_RECORDS = 1000

_PACKAGES = ("torch", "deepspeed")

#: Characters of a message that ``end.json`` keeps.
_MAX_MESSAGE = 2000

#: What PyTorch, CUDA and Python say if memory runs out. The class of the error does not tell.
_NO_MEMORY = re.compile(r"out of memory|MemoryError|allocate memory|not enough memory|failed to allocate")


class End(BaseModel):
    """How a run ended.

    Attributes:
        status: Its exit status. Some launchers turn every status into 1.
        cause: The kind of end.
        message: The error, the verdict of supervision, or what stopped the run.
        ranks: The ranks that the cause is about; empty if it is about all.
        phase: What the process did that wrote this: ``update 41, validation``.
        time: When it was written, in Unix seconds.
    """

    status: int
    cause: Cause
    message: str
    ranks: list[int]
    phase: str
    time: float


class RankProcess(BaseModel):
    """The process of a rank: machine and process id."""

    host: str
    process: int


class Start(BaseModel):
    """Who started a run, and when (Unix seconds); its processes by rank."""

    version: str
    launcher: str
    time: float
    ranks: list[RankProcess]


def record_start(run: Path, ranks: Sequence[RankProcess], launcher: str) -> None:
    """Make the folder of logs, record the start of a run, and forget the end of an earlier one. Only on rank 0.

    Raises:
        StorageError: The folder cannot be written.
    """
    start = Start(version=__version__, launcher=launcher, time=time.time(), ranks=list(ranks))
    with storage_errors(run):
        (run / LOGS).mkdir(exist_ok=True)
        (run / END_NAME).unlink(missing_ok=True)
        replace_file(run / LOGS / START_NAME, f"{start.model_dump_json(indent=2)}\n")


def read_start(run: Path) -> Start | None:
    """Read who started the last run in a folder; None if that is not recorded.

    Raises:
        DataError: The file is damaged or cannot be read.
    """
    path = run / LOGS / START_NAME
    return read_record(path, Start.model_validate) if os.path.lexists(path) else None


def read_end(run: Path) -> End | None:
    """Read how the last run in a folder ended; None if it has not recorded that.

    Raises:
        DataError: The file is damaged or cannot be read.
    """
    path = run / END_NAME
    return read_record(path, End.model_validate) if os.path.lexists(path) else None


class _QuietFile(RotatingFileHandler):
    """A log file that never disturbs the training: what cannot be written is lost."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a method of logging.Handler
        """Do nothing."""


class RankLog:
    """Writes ``rank-NNNNN.log``: the start, phases, warnings and errors, DeepSpeed's lines, stacks. A context manager.

    It also writes ``end.json``. Lines from before :meth:`open` are kept in memory until then.

    Attributes:
        launcher: What started this process; read before it joins, which sets the variables of a launcher.
        run: The run folder; None before :meth:`open`.
    """

    def __init__(self, processes: Processes, environment: Mapping[str, str] = os.environ) -> None:
        self._rank = processes.rank
        self.launcher = launcher_name(environment)
        self.run: Path | None = None
        self._handler: logging.Handler = MemoryHandler(_EARLY_RECORDS, logging.CRITICAL + 1, flushOnClose=False)
        self._logger = logging.Logger(f"rank {self._rank}", logging.INFO)
        self._logger.addHandler(self._handler)
        self._update, self._phase = 0, ""
        versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
        self._logger.info(
            "rank %d of %d on %s, process %d, dstransformer %s, Python %s, %s, started by %s",
            processes.rank, processes.world_size, platform.node(), os.getpid(), __version__,
            platform.python_version(), versions, self.launcher,
        )  # fmt: skip

    def __enter__(self) -> RankLog:
        logging.getLogger().addHandler(self._handler)
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if error is None:
            self._logger.info("ended")
        elif isinstance(error, DstError):
            self._logger.error("ended: %s", error)
        else:
            self._logger.error("ended: %s", type(error).__name__, exc_info=error)
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()

    def open(self, run: Path) -> None:
        """Write from now on into a run folder, where the start is recorded; first what was logged so far."""
        early = self._handler
        assert isinstance(early, MemoryHandler)
        self.run = run
        file = _QuietFile(log_path(run, self._rank), maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True)
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        early.setTarget(file)
        early.flush()
        early.setTarget(None)
        for logger in (self._logger, logging.getLogger()):
            if early in logger.handlers:
                logger.removeHandler(early)
                logger.addHandler(file)
        self._handler = file

    def enter(self, update: int, phase: str) -> None:
        """Note which update this process is at, and what it does. The log says when another phase begins."""
        before, self._update, self._phase = self._phase, update, phase
        if phase != before:
            self._logger.info("update %d: %s", update, phase)

    def note(self, error: Exception) -> None:
        """Note why a collective failed, which a verdict about another process does not say."""
        self._logger.error("%s", error)

    def dump_stacks(self, verdict: str) -> None:
        """Write why this process is ended, the stacks of its threads, and its last collectives.

        Does not use the handler, as the thread that holds its lock may be the one that hangs.
        """
        if self.run is None:
            return
        with log_path(self.run, self._rank).open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} ended by the watchdog: {verdict}\n")
            log.flush()
            faulthandler.dump_traceback(log, all_threads=True)
        dump_collectives(self.run / LOGS / f"{TRACE_PREFIX}{self._rank}")

    def record_end(self, cause: Cause, message: str, status: int, ranks: Sequence[int] = ()) -> bool | None:
        """Write how the run ended, see :class:`End`, unless it is recorded: the first process that knows is right.

        Returns:
            Whether this process has written it; None if it cannot be written, or there is no run folder yet.
        """
        if self.run is None:
            return None
        end = End(
            status=status, cause=cause, message=message[:_MAX_MESSAGE], ranks=list(ranks),
            phase=f"update {self._update}, {self._phase}", time=time.time(),
        )  # fmt: skip
        aside = self.run / LOGS / f"{END_NAME}.{self._rank}"
        try:
            write_durably(aside, f"{end.model_dump_json(indent=2)}\n")
            move_to_new(aside, self.run / END_NAME)
        except FileExistsError:
            return False
        except OSError:
            return None
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
        return True

    def record_error(self, error: BaseException) -> None:
        """Write how the run ended: with an error of this process, or of all, which rank 0 records.

        An error that follows from the end of another process is recorded by rank 0, if no process knows the cause.
        """
        is_shared = isinstance(error, DstError) and error.shared
        if isinstance(error, KeyboardInterrupt):
            if self._rank == 0:
                self.record_end("interrupted", "a second Ctrl-C", 128 + signal.SIGINT)
        elif self._rank == 0 or not (is_shared or isinstance(error, PeerError)):
            status = error.exit_code if isinstance(error, DstError) else 1
            message = str(error) if isinstance(error, DstError) else traceback.format_exception_only(error)[-1].strip()
            self.record_end(cause_of(error), message, status, [] if is_shared else [self._rank])


def log_path(run: Path, rank: int) -> Path:
    """The log of a rank."""
    return run / LOGS / f"rank-{rank:05d}.log"


def cause_of(error: BaseException) -> Cause:
    """The kind of end that an error is."""
    numbers = {each.errno for each in _chain(error) if isinstance(each, OSError)}
    if _NO_MEMORY.search(f"{type(error).__name__}: {error}"):
        return "memory"
    if numbers & {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return "full disk"
    if isinstance(error, OSError | StorageError):
        return "disk"
    if isinstance(error, PeerError):
        return "connection"
    return "error" if isinstance(error, DstError) else "bug"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those from which it was raised."""
    while error is not None:
        yield error
        error = error.__cause__


def record_collectives(environment: MutableMapping[str, str], folder: Path) -> None:
    """Turn on PyTorch's flight recorder: it keeps the last collectives, and writes them into ``folder`` if NCCL fails.

    Values that the user has set stay, those under PyTorch's earlier names too. PyTorch reads them with the first group.
    """
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in environment:
        environment.setdefault("TORCH_FR_BUFFER_SIZE", str(_COLLECTIVES))
    if "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in environment:
        environment.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder.absolute() / TRACE_PREFIX))


def dump_collectives(path: Path) -> None:
    """Write the last collectives of this process, of NCCL or gloo, in the form of PyTorch's own dumps."""
    collectives = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):  # builds with CUDA, and without
        if (dump := getattr(collectives, name, None)) is not None:
            path.write_bytes(dump())
            return


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(none)"
