"""Ranks that no launcher watches: each one a process of its own, as on nodes of a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from support.launching import environment, free_port, run_command

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


def run_ranks(count: int, *program: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Python program in ``count`` processes, with the variables that torchrun gives them, without its start.

    Returns:
        Their outputs one after the other, and the first status that is not 0.
    """
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(extra or {})}
    shared |= {"WORLD_SIZE": str(count)}

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        return run_command([sys.executable, *program], env=environment({**shared, **own}))

    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(run, rank) for rank in range(count)]
    if any(rank.exception() for rank in running):  # one that hangs, because another has ended
        raise AssertionError("\n".join(str(rank.exception() or rank.result()) for rank in running))
    done = [rank.result() for rank in running]
    status = next((rank.returncode for rank in done if rank.returncode), 0)
    outputs = ("".join(rank.stdout for rank in done), "".join(rank.stderr for rank in done))
    return subprocess.CompletedProcess(program, status, *outputs)


def run_dst_ranks(
    count: int, *arguments: str, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``dst`` in ``count`` processes; see :func:`run_ranks`."""
    return run_ranks(count, "-m", "dstransformer", *arguments, extra=extra)
