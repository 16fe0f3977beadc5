"""Starts processes and real ranks, and leaves none of them behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]

#: Seconds that one command may take. Less than the time limit of a test, so that its output is shown if it hangs.
LIMIT = 200.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that finds this checkout's packages; on the CPU, one thread a rank."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")])
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


@contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A running process. On the way out it is killed, with all that it started and that is still there.

    Args:
        command: Its command line.
        env: Its environment; without, that of ``environment``.
        options: Further ones of ``subprocess.Popen``.
    """
    with (
        marked(environment() if env is None else env) as variables,
        subprocess.Popen(command, env=variables, text=True, **options) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def run_command(
    command: Sequence[str], *, timeout: float = LIMIT, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Where that takes longer than ``timeout`` seconds: AssertionError, with its output."""
    with started(command, env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as expired:
            printed = b"\n".join(part[-3000:] for part in (expired.output, expired.stderr) if part)
            text = printed.decode(errors="replace")
            raise AssertionError(f"not done in {timeout:.0f} s: {command}\n{text}") from None
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def run_dst(
    *arguments: str,
    ranks: int = 1,
    timeout: float = LIMIT,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """``dst`` in one process, or under the deepspeed launcher with several."""
    alone = [sys.executable, "-m", "dstransformer", *arguments]
    command = alone if ranks == 1 else launcher(ranks, "--module", "dstransformer", *arguments)
    return run_command(command, timeout=timeout, env=environment(extra), cwd=cwd)


def launcher(ranks: int, *arguments: str) -> Sequence[str]:
    """The command line that starts ``ranks`` processes on this machine."""
    program = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks)]
    return [*program, "--master_port", str(free_port()), *arguments]


@contextmanager
def marked(variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """An environment by which processes are known; those that have it are killed on the way out.

    Neither their parents nor their sessions would tell: launchers and daemons give those up.
    """
    mark = f"DST_TEST_{uuid.uuid4().hex}"
    try:
        yield {**variables, mark: "1"}
    finally:
        deadline = time.monotonic() + 20.0
        while left := [process for process in psutil.process_iter() if _has(process, mark)]:
            assert time.monotonic() < deadline, f"cannot be killed: {left}"
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1.0)


def _has(process: psutil.Process, variable: str) -> bool:
    try:
        return variable in process.environ()
    except psutil.Error:  # gone meanwhile, or another user's
        return False
