"""What a process of a run leaves behind: its log, stacks and last collectives; and the exit status of the run."""

from __future__ import annotations

import faulthandler
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

from dstransformer import __version__
from dstransformer.distributed.launcher import Processes, launcher_name
from dstransformer.errors import DstError
from dstransformer.io.files import replace_file

#: The folder of logs in a run folder.
LOGS = "logs"

#: A log of more bytes becomes ``rank-NNNNN.log.1``, in place of the one before.
MAX_BYTES = 1_000_000

#: Name of the flight recorder's files, without the rank at their end, as PyTorch's ``torchfrtrace`` takes it.
TRACE_PREFIX = "trace_rank_"

#: In the run folder: the exit status and when the run ended (Unix seconds), in one line.
STATUS_NAME = "exit-status"

#: Collectives of each process that the flight recorder keeps.
_COLLECTIVES = 2000

#: Records kept before the run folder exists.
_EARLY_RECORDS = 1000

_PACKAGES = ("torch", "deepspeed")


class _QuietFile(RotatingFileHandler):
    """A log file that never disturbs the training: what cannot be written is lost."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a method of logging.Handler
        """Do nothing."""


class RankLog:
    """Writes ``rank-NNNNN.log``: the start, each phase, every warning and error, and stacks. A context manager.

    Lines from before :meth:`open` are kept in memory until then.

    Args:
        processes: Rank of this process, and the number of them.
        environment: The environment variables.
    """

    def __init__(self, processes: Processes, environment: Mapping[str, str] = os.environ) -> None:
        self._rank = processes.rank
        self._path: Path | None = None
        self._handler: logging.Handler = MemoryHandler(_EARLY_RECORDS, logging.CRITICAL + 1, flushOnClose=False)
        self._logger = logging.Logger(f"rank {self._rank}", logging.INFO)
        self._logger.addHandler(self._handler)
        self._phase = ""
        versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
        self._logger.info(
            "rank %d of %d on %s, process %d, dstransformer %s, Python %s, %s, started by %s",
            processes.rank, processes.world_size, platform.node(), os.getpid(), __version__,
            platform.python_version(), versions, launcher_name(environment),
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

    def open(self, folder: Path) -> None:
        """Write from now on into ``folder``, which exists; first what was logged so far."""
        early = self._handler
        assert isinstance(early, MemoryHandler)
        self._path = folder / f"rank-{self._rank:05d}.log"
        file = _QuietFile(self._path, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True)
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
        """Note that another phase begins."""
        if phase != self._phase:
            self._phase = phase
            self._logger.info("update %d: %s", update, phase)

    def note(self, error: Exception) -> None:
        """Note why a collective failed, which a verdict about another process does not say."""
        self._logger.error("%s", error)

    def dump_stacks(self, verdict: str) -> None:
        """Write why this process is ended, the stacks of its threads, and its last collectives.

        Does not use the handler, as the thread that holds its lock may be the one that hangs.
        """
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} ended by the watchdog: {verdict}\n")
            log.flush()
            faulthandler.dump_traceback(log, all_threads=True)
        dump_collectives(self._path.with_name(f"{TRACE_PREFIX}{self._rank}"))


class ExitStatus:
    """The exit status of a run, in a file: some launchers turn every status into 1.

    Rank 0 writes it, once the run folder exists. If that fails, only the launcher's status is known.

    Args:
        rank: Rank of this process.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._path: Path | None = None

    def open(self, run: Path) -> None:
        """Use a run folder."""
        self._path = run / STATUS_NAME

    def record(self, status: int) -> None:
        """Write the status of the run."""
        if self._rank == 0 and self._path is not None:
            with suppress(OSError):
                replace_file(self._path, f"{status} {time.time():.3f}\n")

    def record_error(self, error: BaseException) -> None:
        """Write the status of a run that ends with an error."""
        if isinstance(error, KeyboardInterrupt):
            self.record(128 + signal.SIGINT)
        else:
            self.record(error.exit_code if isinstance(error, DstError) else 1)


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
