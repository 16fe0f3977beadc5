"""Runs Python programs in processes that start without importing PyTorch, DeepSpeed and MLflow, which takes seconds.

The processes are forked from a server that has imported them (:mod:`support.processes.preload`). Otherwise they are
ordinary processes with their own arguments, environment, working directory, output, signals and exit status.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest import mock

REPOSITORY = Path(__file__).resolve().parents[3]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["support.processes.preload"])


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which a process finds this checkout's packages and uses one thread on the CPU."""
    tests = REPOSITORY / "tests"
    folders = [REPOSITORY, tests, tests / "support" / "startup"]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return {
        **clean,
        "PYTHONPATH": path,
        "PATH": binaries,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **(extra or {}),
    }


#: Where workers of pytest-xdist find the address of the one server, which the process that controls them starts.
_ADDRESS = "DST_TEST_FORK_SERVER"


def share_fork_server() -> None:
    """Start the fork server, for this process and the workers that it will start."""
    fork_server()
    server: Any = forkserver._forkserver
    os.environ[_ADDRESS] = server._forkserver_address


def fork_server() -> ForkServerContext:
    """The fork server: the shared one, or else this process's own, which the first call starts."""
    server: Any = forkserver._forkserver
    shared = os.environ.get(_ADDRESS)
    if shared is None:
        with mock.patch.dict(os.environ, environment()):
            server.ensure_running()
    elif server._forkserver_address != shared:
        server._forkserver_address = shared
        server._forkserver_alive_fd = os.pipe()[1]  # the server only waits for the end of the process that started it
        server.ensure_running = lambda: None
    return _CONTEXT


class Fork:
    """A forked process with the parts of the interface of ``subprocess.Popen`` that tests need.

    Args:
        program: ``-m MODULE`` or the path of a file, and its arguments.
        env: The environment.
        cwd: The working directory; defaults to that of this process.
        streams: The files of standard input, output and error; by default no input, and ``outputs``.
    """

    def __init__(
        self,
        program: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None = None,
        streams: Sequence[Path] | None = None,
    ) -> None:
        self.args = list(program)
        self._folder = tempfile.TemporaryDirectory(prefix="dst-test-fork-")
        self.outputs = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        for path in self.outputs:
            path.touch()
        opened = list(map(str, streams or [Path(os.devnull), *self.outputs]))
        job = (self.args, dict(env), str(cwd or Path.cwd()), opened)
        self._process = fork_server().Process(target=_run_program, args=job)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative if a signal ended the process; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit status; None while the process runs."""
        return self.returncode

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        self._process.join()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return stdout and stderr.

        Raises:
            subprocess.TimeoutExpired: The process still runs; the error has the output so far.
        """
        self._process.join(timeout)
        output, errors = (path.read_bytes() for path in self.outputs)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, output, errors)
        return output.decode(), errors.decode()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and delete its output."""
        self.kill()
        self._process.join()
        self._folder.cleanup()


def _run_program(program: Sequence[str], env: Mapping[str, str], cwd: str, streams: Sequence[str]) -> None:
    """Run the program in the forked process as Python would."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    # The server's own objects know what its streams were: whether they can seek, for instance.
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        for number, mode, buffering, errors in (
            (0, "r", -1, "strict"),
            (1, "w", -1, "strict"),
            (2, "w", 1, "backslashreplace"),
        )
    )
    sys.orig_argv = [sys.executable, *program]
    try:
        if program[0] == "-m":
            sys.argv = list(program[1:])
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(program)
            runpy.run_path(program[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
