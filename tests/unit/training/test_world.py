from __future__ import annotations

import os
import socket

import pytest
import torch

from dstransformer.errors import DstError, UserError
from dstransformer.training.processes import Processes, read_processes
from dstransformer.training.world import _share_cores, join_world, leave_world

LAUNCHER = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
}


@pytest.mark.parametrize("variables", [LAUNCHER, SLURM], ids=["deepspeed and torchrun", "srun"])
def test_every_launcher_is_understood(variables: dict[str, str]) -> None:
    assert read_processes(variables) == Processes(rank=3, local_rank=1, world_size=4)


@pytest.mark.parametrize("variables", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}], ids=["none", "inside a job"])
def test_without_a_launcher_there_is_one_process(variables: dict[str, str]) -> None:
    assert read_processes(variables) == Processes(0, 0, 1)


@pytest.mark.parametrize("variables", [
    {"WORLD_SIZE": "many"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "-1", "WORLD_SIZE": "2"},
    {"SLURM_STEP_NUM_TASKS": "two"},
])  # fmt: skip
def test_a_variable_that_is_no_number_is_named(variables: dict[str, str]) -> None:
    name, value = next(iter(variables.items()))
    with pytest.raises(UserError, match=f"{name} is '{value}', not a number"):
        read_processes(variables)


def test_a_number_of_processes_without_a_rank_is_refused() -> None:
    with pytest.raises(UserError, match=r"WORLD_SIZE=2, but no RANK: .*deepspeed --num_gpus 2"):
        read_processes({"WORLD_SIZE": "2"})
    assert read_processes({"WORLD_SIZE": "8"}, alone=True) == Processes(0, 0, 8), "a dry run plans for eight"


@pytest.mark.usefixtures("own_world")
def test_a_port_that_is_in_use_is_said_to_be() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2"}
        for name, value in variables.items():
            os.environ[name] = value
        with pytest.raises(DstError, match=rf"port {port} of 127.0.0.1.* is in use .* MASTER_PORT .* --master_port"):
            join_world(read_processes(variables))


@pytest.fixture
def own_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """What joining sets in the environment is undone."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(UserError, match="RANK=2 of WORLD_SIZE=2"):
        read_processes({"RANK": "2", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(("others", "threads"), [
    ([], 8), ([("here", range(8))], 4), ([("here", range(8)), ("here", range(8))], 2), ([("there", range(8))], 8),
    ([("here", range(8, 16))], 8), ([("here", range(4))], 4), ([("here", range(8))] * 20, 1),
], ids=["alone", "two", "three", "other machine", "own cores", "overlap", "more ranks than cores"])  # fmt: skip
def test_processes_share_the_cores_that_they_may_run_on(others: list[tuple[str, range]], threads: int) -> None:
    mine = ("here", frozenset(range(8)))
    assert _share_cores(mine, [mine, *((node, frozenset(cores)) for node, cores in others)]) == threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_process_has_as_many_threads_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        os.sched_setaffinity(0, {min(cores)})
        torch.set_num_threads(3)
        join_world(read_processes({}))
        assert torch.get_num_threads() == 1
    finally:
        leave_world()
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
