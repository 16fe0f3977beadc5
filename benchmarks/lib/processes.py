"""Starts processes with the variables of ``launch/env.sh``, as for training on a CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

ENVIRONMENT = Path(__file__).parents[2] / "launch" / "env.sh"


@cache
def settings() -> dict[str, str]:
    """The variables set by launch/env.sh."""
    command = ["bash", "-c", f"env -i bash -c 'source {ENVIRONMENT}; env' | grep ^MALLOC_"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, plus the variables of launch/env.sh and ``more``."""
    return os.environ | settings() | more


def run_module(name: str, *arguments: str) -> None:
    """Run a module in a new process. Its stdout is passed through; its stderr is shown if it fails."""
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments], env=environment(), stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
