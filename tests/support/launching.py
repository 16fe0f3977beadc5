"""Starts real ranks through the deepspeed launcher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that finds the packages of this checkout; one thread a rank, as cores are few."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")])
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return {**clean, "PYTHONPATH": path, "PATH": binaries, "OMP_NUM_THREADS": "1", **(extra or {})}


def run_dst(
    *arguments: str,
    ranks: int = 1,
    timeout: float = 300,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """``dst`` in one process, or under the deepspeed launcher with several."""
    alone = [sys.executable, "-m", "dstransformer", *arguments]
    command = alone if ranks == 1 else launcher(ranks, "--module", "dstransformer", *arguments)
    return subprocess.run(
        command, env=environment(extra), cwd=cwd, timeout=timeout, capture_output=True, text=True, check=False
    )


def launcher(ranks: int, *arguments: str) -> Sequence[str]:
    """The command line that starts ``ranks`` processes on this machine."""
    program = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks)]
    return [*program, "--master_port", str(free_port()), *arguments]
