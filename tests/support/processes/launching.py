"""Starts processes, and kills all that are left when the test ends."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import psutil

from support.processes.forks import Fork, environment

#: Seconds without progress (almost no CPU time, no output) after which a process counts as hung. Even on a slow or busy
#: machine there is some progress. The longest legitimate wait is for another process to build DeepSpeed's operators.
HANG_SECONDS = 400.0
#: Time limit in seconds, for processes that hang in a busy loop. No test comes near it.
LIMIT = 1800.0

_CHECK_SECONDS = 5.0  # seconds between two checks for a hung process
_PORTS = range(10_000, 20_000)  # launch/slurm.sbatch uses ports from 20000, the kernel ephemeral ports from 32768
_ports_held: list[TextIO] = []


def free_port() -> int:
    """A free port. No other test process gets the same one until this process ends."""
    folder = Path(tempfile.gettempdir(), f"dst-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for port in _PORTS:
        held = (folder / str(port)).open("w")
        with suppress(OSError), socket.socket() as listener:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listener.bind(("127.0.0.1", port))
            _ports_held.append(held)
            return port
        held.close()
    raise AssertionError(f"no port is free in {_PORTS}")


@contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start a process. On exit, kill it and all processes that it started.

    Args:
        command: The command line.
        env: The environment; defaults to ``environment()``.
        options: Further options of ``subprocess.Popen``.
    """
    with (
        marked(environment() if env is None else env) as variables,
        subprocess.Popen(command, env=variables, text=True, **options) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def forked(program: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Iterator[Fork]:
    """Start a Python program that need not import PyTorch, DeepSpeed and MLflow; see ``started``.

    Args:
        program: ``-m MODULE`` or the path of a file, and its arguments.
        env: The environment; defaults to ``environment()``.
        cwd: The working directory.
    """
    with marked(environment() if env is None else env) as variables:
        process = Fork(program, variables, cwd)
        try:
            yield process
        finally:
            process.close()


def finish(process: subprocess.Popen[str] | Fork, *peers: Fork) -> tuple[str, str]:
    """Wait for a process; return its stdout and stderr.

    Raises:
        AssertionError: The process and its peers hang; the message has the output so far.
    """
    detector = HangDetector([process.pid, *(peer.pid for peer in peers)])
    while True:
        try:
            output, errors = process.communicate(timeout=_CHECK_SECONDS)
            return output or "", errors or ""
        except subprocess.TimeoutExpired as expired:
            printed = b"\n".join(part for part in (expired.output, expired.stderr) if part)
            detector.check(len(printed), f"{process.args!r}\n{printed.decode(errors='replace')[-6000:]}")


class HangDetector:
    """Detects hung processes by their output and the CPU time of them and their descendants."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._started = self._last_progress = time.monotonic()
        self._previous = (0, 0.0)  # bytes printed, CPU seconds

    def check(self, printed: int, message: str) -> None:
        """Raise AssertionError with the message if there was no progress; ``printed`` is the bytes of output so far."""
        now, cpu = time.monotonic(), self._cpu_seconds()
        if printed != self._previous[0] or abs(cpu - self._previous[1]) > 0.01 * (now - self._last_progress) + 0.1:
            self._last_progress, self._previous = now, (printed, cpu)
        assert now - self._last_progress < HANG_SECONDS, f"no progress for {HANG_SECONDS:.0f} s: {message}"
        assert now - self._started < LIMIT, f"not done in {LIMIT:.0f} s: {message}"

    def _cpu_seconds(self) -> float:
        total = 0.0
        for pid in self._pids:
            with suppress(psutil.Error):
                parent = psutil.Process(pid)
                for process in [parent, *parent.children(recursive=True)]:
                    with suppress(psutil.Error):
                        total += sum(process.cpu_times()[:4])  # including finished children
        return total


def run_command(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises AssertionError with its output if it hangs."""
    with started(command, env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, errors = finish(process)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def wait_until(
    condition: Callable[[], bool],
    message: Callable[[], str] = str,
    *,
    running: Sequence[subprocess.Popen[str] | Fork] = (),
) -> None:
    """Wait for a condition.

    Args:
        condition: The condition.
        message: What a failure shows.
        running: Processes that must run until the condition holds.

    Raises:
        AssertionError: A process ended first, or a time limit passed that is meant for hangs only.
    """
    deadline = time.monotonic() + LIMIT
    while not condition():
        ended = [process.poll() for process in running]
        if any(status is not None for status in ended) and not condition():
            raise AssertionError(f"exit statuses {ended} before it holds: {message()}")
        assert time.monotonic() < deadline, f"not within {LIMIT:.0f} s: {message()}"
        time.sleep(0.02)


def run_dst(
    *arguments: str, cwd: Path | None = None, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``dst`` in a forked process."""
    with forked(["-m", "dstransformer", *arguments], environment(extra), cwd) as process:
        output, errors = finish(process)
        assert process.returncode is not None
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def launcher(ranks: int, *arguments: str) -> Sequence[str]:
    """The command line that starts ``ranks`` processes on this machine."""
    program = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks)]
    return [*program, "--master_port", str(free_port()), *arguments]


@contextmanager
def marked(variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Mark an environment; on exit, kill all processes that have the mark.

    Parent processes and sessions cannot identify them, because launchers and daemons change both.
    """
    mark = f"DST_TEST_{uuid.uuid4().hex}"
    try:
        yield {**variables, mark: "1"}
    finally:
        deadline = time.monotonic() + HANG_SECONDS
        while left := [process for process in psutil.process_iter() if _has(process, mark)]:
            assert time.monotonic() < deadline, f"cannot be killed: {left}"
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1.0)


def _has(process: psutil.Process, variable: str) -> bool:
    try:
        return variable in process.environ()
    except psutil.Error:  # process has ended, or belongs to another user
        return False
