"""Runs ranks without a launcher that watches them, as on the nodes of a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from support.processes.forks import Fork, environment
from support.processes.launching import finish, forked, free_port


@contextmanager
def srun(*commands: Sequence[str]) -> Iterator[list[Fork]]:
    """Start ``dst`` in one process per argument list, with the variables that srun sets for the tasks of a step."""
    shared = {"SLURM_NTASKS": str(len(commands)), "SLURM_STEP_NUM_TASKS": str(len(commands))}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        ranks = []
        for rank, arguments in enumerate(commands):
            variables = environment({**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
            ranks.append(stack.enter_context(forked(["-m", "dstransformer", *arguments], variables)))
        yield ranks


def run_ranks(count: int, *program: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Python program in ``count`` processes with the variables that torchrun sets, without starting torchrun.

    Returns:
        The concatenated outputs, and the first exit status that is not 0.
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
    """Wait for all ranks; return the output of each.

    Raises:
        AssertionError: One hangs; the message has the output of all, as another rank may be the cause.
    """
    try:
        return [finish(rank, *ranks) for rank in ranks]
    except AssertionError as hang:
        printed = [path.read_text()[-3000:] for rank in ranks for path in rank.outputs]
        raise AssertionError("\n".join([str(hang), *printed])) from None


def run_dst_ranks(
    count: int, *arguments: str, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``dst`` in ``count`` processes; see :func:`run_ranks`."""
    return run_ranks(count, "-m", "dstransformer", *arguments, extra=extra)
