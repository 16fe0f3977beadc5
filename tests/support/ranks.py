"""Ranks that no launcher watches: each one a process of its own, as on nodes of a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from support.launching import environment, free_port

Ranks = list[subprocess.Popen[str]]


@contextmanager
def srun(*commands: Sequence[str]) -> Iterator[Ranks]:
    """One process for each argument list of ``dst``, with the variables that srun gives to the tasks of a step."""
    shared = {"SLURM_NTASKS": str(len(commands)), "SLURM_STEP_NUM_TASKS": str(len(commands))}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        ranks = []
        for rank, arguments in enumerate(commands):
            process = subprocess.Popen(
                [sys.executable, "-m", "dstransformer", *arguments],
                env=environment({**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        yield ranks
