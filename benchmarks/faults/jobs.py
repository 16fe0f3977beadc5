"""Starts a run and knows its processes, with and without a launcher."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from support.processes.forks import environment
from support.processes.launching import free_port, started
from support.processes.ranks import srun

#: How a run may be started: as by ``srun``, which watches nothing here, or by a launcher.
PLAIN, DEEPSPEED, TORCHRUN = "plain", "deepspeed", "torchrun"

_POLL = 0.05


class Job:
    """The processes of one start of a run.

    Args:
        arguments: Of ``dst``.
        ranks: Number of processes.
        launcher: One of :data:`PLAIN`, :data:`DEEPSPEED`, :data:`TORCHRUN`.
        log: File for the output of a launcher.
    """

    def __init__(self, arguments: Sequence[str], ranks: int, launcher: str, log: Path) -> None:
        self.ranks = ranks
        self.launcher = launcher
        self.began = time.time()
        self._log = log
        self._stack = ExitStack()
        self._program: Any = None
        self._forks: list[Any] = []
        self._seen: dict[int, psutil.Process] = {}
        if launcher == PLAIN:
            self._forks = self._stack.enter_context(srun(*[arguments] * ranks))
            return
        file = self._stack.enter_context(log.open("w"))
        self._program = self._stack.enter_context(
            started(_command(launcher, ranks, arguments), environment(), stdout=file, stderr=file)
        )

    @property
    def is_running(self) -> bool:
        """Whether everything that was started still runs."""
        if self._program is not None:
            return self._program.poll() is None
        return all(fork.poll() is None for fork in self._forks)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of the run is left, orphans of a launcher included."""
        if self._program is not None:
            self._look()
            return self._program.poll() is not None and not any(map(_is_alive, self._seen.values()))
        return all(fork.poll() is not None for fork in self._forks)

    @property
    def statuses(self) -> list[int | None]:
        """The exit status of each rank, or of the launcher; negative if a signal ended it, None while it runs."""
        if self._program is not None:
            return [self._program.poll()]
        return [fork.poll() for fork in self._forks]

    def pids(self) -> list[int]:
        """The processes of the ranks, in their order."""
        if self._program is None:
            return [fork.pid for fork in self._forks]
        self._look()
        found: dict[int, int] = {}
        for process in self._seen.values():
            with suppress(psutil.Error):
                rank = process.environ().get("RANK")
                if rank is not None and "dstransformer" in process.cmdline():
                    found.setdefault(int(rank), process.pid)
        return [found[rank] for rank in sorted(found)]

    def launchers(self) -> list[int]:
        """The processes of the launcher, the one that was started first."""
        self._look()
        ranks = self.pids()
        return [] if self._program is None else [self._program.pid, *(pid for pid in self._seen if pid not in ranks)]

    def output(self) -> str:
        """What all processes have printed."""
        paths = [self._log] if self._program is not None else [path for fork in self._forks for path in fork.outputs]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def wait(self, patience: float, sign_of_life: Callable[[], object] = int) -> bool:
        """Wait for the end of all processes.

        Args:
            patience: Seconds to wait.
            sign_of_life: What changes while the run goes on, which starts the waiting anew.

        Returns:
            Whether they have ended.
        """
        since, seen = time.monotonic(), sign_of_life()
        while not self.has_ended:
            if (now := sign_of_life()) != seen:
                since, seen = time.monotonic(), now
            if time.monotonic() - since > patience:
                return False
            time.sleep(_POLL)
        return True

    def close(self) -> None:
        """Kill what is left."""
        self._stack.close()
        for process in self._seen.values():
            with suppress(psutil.Error):
                process.kill()

    def _look(self) -> None:
        """Take note of the launcher's children, which lose their parent when it is killed."""
        if self._program is not None and self._program.poll() is None:
            with suppress(psutil.Error):
                for process in psutil.Process(self._program.pid).children(recursive=True):
                    self._seen.setdefault(process.pid, process)


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _command(launcher: str, ranks: int, arguments: Sequence[str]) -> list[str]:
    port = str(free_port())
    if launcher == DEEPSPEED:
        program = ["deepspeed.launcher.runner", "--num_gpus", str(ranks), "--master_port", port]
        return [sys.executable, "-m", *program, "--module", "dstransformer", *arguments]
    program = ["torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks), "--master-port", port]
    return [sys.executable, "-m", *program, "--module", "--", "dstransformer", *arguments]
