"""Starts processes, with the variables of ``launch/env.sh`` as for training on a CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from functools import cache

from benchmarks.lib.machine import ROOT

#: Characters of standard error in the message of a failed process.
TAIL = 3000

#: Seconds for a worker to end after its standard input was closed.
END_SECONDS = 15.0


@cache
def allocator_settings() -> dict[str, str]:
    """The variables set by launch/env.sh."""
    command = ["bash", "-c", f"env -i bash -c 'source {ROOT / 'launch' / 'env.sh'}; env' | grep ^MALLOC_"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, plus the variables of launch/env.sh and ``more``."""
    return os.environ | allocator_settings() | more


def run_command(command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command; return its output.

    Raises:
        SystemExit: It failed. The message has the end of its standard error.
    """
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"exit status {done.returncode}: {' '.join(command)}\n{done.stderr[-TAIL:]}")
    return done


def run_prep(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``dst-prep`` with these arguments, as :func:`run_command` does."""
    return run_command([sys.executable, "-m", "data_prep", *arguments], env)


def run_module(name: str, *arguments: str) -> None:
    """Run a module in a process with the variables of launch/env.sh, and print its standard output."""
    print(run_command([sys.executable, "-m", name, *arguments], environment()).stdout, end="")


class Worker:
    """A process that answers each line on its standard input with a line on its standard output.

    Attributes:
        pid: Its process ID.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command = " ".join(command[:4])
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (open until the end)
        self._process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )
        self.pid = self._process.pid

    def send(self, line: object) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def receive(self) -> str:
        """Wait for a line.

        Raises:
            SystemExit: The process has ended. The message has the end of its standard error.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            raise SystemExit(f"exit status {status}: {self._command} …\n{self._errors.read()[-TAIL:]}")
        return line

    def end(self, seconds: float = END_SECONDS) -> None:
        """Close its standard input, and kill it if it has not ended after this many seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def wait_for_server(address: str, server: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a server answers with status 200.

    Raises:
        SystemExit: It has ended, or did not answer within this many seconds.
    """
    deadline = time.monotonic() + seconds
    while not _answers(address):
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no answer from {address}: the server did not start")
        time.sleep(0.1)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
