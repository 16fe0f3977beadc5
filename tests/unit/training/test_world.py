from __future__ import annotations

import os

import pytest

from dstransformer.errors import UserError
from dstransformer.training import world
from dstransformer.training.world import Processes, read_processes

DEEPSPEED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2", "MASTER_ADDR": "a"}
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_STEP_NUM_TASKS": "4",
}


@pytest.mark.parametrize("variables", [DEEPSPEED, TORCHRUN, SLURM], ids=["deepspeed", "torchrun", "srun"])
def test_every_launcher_is_understood(variables: dict[str, str]) -> None:
    assert read_processes(variables) == Processes(rank=3, local_rank=1, world_size=4, local_world_size=2)


@pytest.mark.parametrize("variables", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}], ids=["none", "inside a job"])
def test_without_a_launcher_there_is_one_process(variables: dict[str, str]) -> None:
    assert read_processes(variables) == Processes(0, 0, 1, 1)


@pytest.mark.parametrize("variables", [
    {"WORLD_SIZE": "many"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "-1", "WORLD_SIZE": "2"},
    {"SLURM_STEP_NUM_TASKS": "two"}, {"LOCAL_SIZE": "0", "WORLD_SIZE": "2"},
])  # fmt: skip
def test_a_variable_that_is_no_number_is_named(variables: dict[str, str]) -> None:
    name, value = next(iter(variables.items()))
    with pytest.raises(UserError, match=f"{name} is '{value}', not a number"):
        read_processes(variables)


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(UserError, match="RANK=2 of WORLD_SIZE=2"):
        read_processes({"RANK": "2", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(("variables", "own_task", "threads"), [
    ({}, False, 3), ({"SLURM_CPUS_PER_TASK": "4"}, True, 4), ({"SLURM_CPUS_PER_TASK": "16"}, True, 6),
    ({"SLURM_CPUS_PER_TASK": "4"}, False, 3),
], ids=["share", "task", "fewer cores than asked for", "launcher inside a task"])  # fmt: skip
def test_processes_share_the_cores_they_may_run_on(
    variables: dict[str, str], own_task: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "usable_cores", lambda: 6)
    assert world._choose_threads(variables, own_task, 2) == threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_cores_that_are_not_ours_do_not_count() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert world.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
