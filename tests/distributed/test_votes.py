"""A vote reaches every rank, whatever their number, on real processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.world import free_port, join_world

#: Soft limit of open files of the processes, fewer than each of 67 needs.
FILES = 100


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 67])
def test_a_flag_of_any_rank_reaches_all(ranks: int, tmp_path: Path) -> None:
    command = f"ulimit -Sn {FILES} && exec {sys.executable} -m {__name__} {ranks} {free_port()} {tmp_path}"
    with subprocess.Popen(command, shell=True, cwd=Path(__file__).parents[2], start_new_session=True) as parent:
        try:
            assert parent.wait(timeout=300) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
    votes = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    raised = sorted({0, ranks // 2, ranks - 1})
    assert votes == [[[rank == one for one in (0, ranks // 2, ranks - 1)] for rank in raised]] * ranks


def _vote(processes: Processes, port: int, folder: Path) -> None:
    """Be a rank: vote once for each of three ranks that alone raises a flag."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    world = join_world(processes)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > FILES
    size = processes.world_size
    votes = []
    for raised in sorted({0, size // 2, size - 1}):
        votes.append(world.any(*(processes.rank == raised == flag for flag in (0, size // 2, size - 1))))
        assert world.all_reduce(torch.ones(3)).tolist() == [size] * 3, "votes and other collectives take turns"
        assert world.broadcast(processes.rank) == 0
    (folder / f"{processes.rank}.json").write_text(json.dumps(votes))
    world.barrier()


def _fork(ranks: int, port: int, folder: Path) -> int:
    """Be the parent of all ranks: whether one failed."""
    children = []
    for rank in range(ranks):
        if (child := os.fork()) == 0:
            status = 1
            try:
                _vote(Processes(rank, rank, ranks), port, folder)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    return max(os.waitpid(child, 0)[1] for child in children) and 1


if __name__ == "__main__":
    sys.exit(_fork(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
