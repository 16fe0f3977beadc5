"""Ranks that no launcher watches: each one a process of its own, as on nodes of a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from support.forks import Fork
from support.launching import environment, finish, forked, free_port


@contextmanager
def srun(*commands: Sequence[str]) -> Iterator[list[Fork]]:
    """One process for each argument list of ``dst``, with the variables that srun gives to the tasks of a step."""
    shared = {"SLURM_NTASKS": str(len(commands)), "SLURM_STEP_NUM_TASKS": str(len(commands))}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        ranks = []
        for rank, arguments in enumerate(commands):
            variables = environment({**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
            ranks.append(stack.enter_context(forked(["-m", "dstransformer", *arguments], variables)))
        yield ranks


def run_ranks(count: int, *program: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Python program in ``count`` processes, with the variables that torchrun gives them, without its start.

    Returns:
        Their outputs one after the other, and the first status that is not 0.
    """
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(extra or {})}
    shared |= {"WORLD_SIZE": str(count)}
    with ExitStack() as stack:
        ranks = []
        for rank in range(count):
            variables = environment({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            ranks.append(stack.enter_context(forked(program, variables)))
        outputs = finish_all(ranks)
        status = next((rank.returncode for rank in ranks if rank.returncode), 0)
    printed = ("".join(parts) for parts in zip(*outputs, strict=True))
    return subprocess.CompletedProcess(program, status, *printed)


def finish_all(ranks: Sequence[Fork]) -> list[tuple[str, str]]:
    """What each of them prints until it ends. AssertionError with all of it where one hangs, as another may be why."""
    try:
        return [finish(rank, *ranks) for rank in ranks]
    except AssertionError as hang:
        printed = [path.read_text()[-3000:] for rank in ranks for path in rank.outputs]
        raise AssertionError("\n".join([str(hang), *printed])) from None


def run_dst_ranks(
    count: int, *arguments: str, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``dst`` in ``count`` processes; see :func:`run_ranks`."""
    return run_ranks(count, "-m", "dstransformer", *arguments, extra=extra)
