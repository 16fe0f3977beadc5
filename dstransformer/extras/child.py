"""Runs a program in a child process, which gets the signals of its parent and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dstransformer.distributed.world import free_port
from dstransformer.io.command import Stopped, stopped_by_signals
from dstransformer.io.files import storage_errors

#: Variables by which the processes of a launcher find each other. A child trains alone.
_LAUNCHER_PREFIXES = ("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "TORCHELASTIC_", "PMI_", "OMPI_")
_LAUNCHER_NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip

#: How the last line of a program that failed begins.
_ERRORS = ("dst: error: ", "dst: internal error: ", "dst-prep: error: ", "dst-prep: internal error: ")

#: The program of the child. It asks the kernel for SIGTERM if its parent dies (prctl(2)).
_MAIN = """
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit(143)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class ChildResult:
    """How a child ended.

    Attributes:
        status: Its exit status; 0 if it finished.
        stdout: Its standard output.
        error: The last error line that it logged, or how it ended.
        seconds: Its wall time.
        signal: The signal that the parent received meanwhile; None if none.
    """

    status: int
    stdout: str
    error: str
    seconds: float
    signal: int | None


def run_dst(
    arguments: Sequence[str], log: Path, variables: Mapping[str, str] | None = None, processes: int = 1
) -> ChildResult:
    """Run a command of ``dst`` to its end, as :func:`run_module` does.

    ``torchrun`` starts the ``processes`` on this machine if there are several.
    """
    if processes == 1:
        return run_module("dstransformer", arguments, log, variables)
    launch = ["--nproc_per_node", str(processes), "--master_port", str(free_port()), "--module", "--", "dstransformer"]
    return run_module("torch.distributed.run", [*launch, *arguments], log, variables)


def run_module(
    module: str,
    arguments: Sequence[str],
    log: Path,
    variables: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ChildResult:
    """Run a module as ``python -m`` does, to its end. A stop signal is passed on, and the child is waited for.

    Args:
        module: The module.
        arguments: Its arguments.
        log: The child's standard error is appended to it.
        variables: Environment variables to add.
        folder: Its working folder; None for that of this process.

    Raises:
        StorageError: The log cannot be written.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHER_NAMES and not name.startswith(_LAUNCHER_PREFIXES)
    }
    began, received = time.monotonic(), None
    with storage_errors(log), log.open("ab") as errors:
        start = errors.tell()
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(os.getpid()), module, *arguments],
            # No module of the working folder stands in for one of ours.
            env={**environment, "PYTHONSAFEPATH": "1", **(variables or {})},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        try:
            with stopped_by_signals():
                output, _ = process.communicate()
        except Stopped as stop:
            received = stop.number
            process.terminate()  # the run writes a checkpoint
            output, _ = process.communicate()
    return ChildResult(process.returncode, output, _describe(process, log, start), time.monotonic() - began, received)


def _describe(process: subprocess.Popen[str], log: Path, start: int) -> str:
    """Why a process ended, from what it logged."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").strip().splitlines()
    found = next((line for line in reversed(lines) if line.startswith(_ERRORS)), None)
    if found is not None:
        return found.partition(": ")[2].removeprefix("error: ")
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    return lines[-1] if lines else f"exit status {process.returncode}"
