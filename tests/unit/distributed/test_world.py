from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dstransformer.distributed import world
from dstransformer.distributed.launcher import Processes, check_environment, read_processes, single_process_warning
from dstransformer.distributed.world import join_world, leave_world, peer_errors
from dstransformer.errors import DstError, PeerError, UserError

LAUNCHER = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
}


@pytest.mark.parametrize("variables", [LAUNCHER, SLURM], ids=["deepspeed and torchrun", "srun"])
def test_variables_of_every_launcher_are_read(variables: dict[str, str]) -> None:
    assert read_processes(variables) == Processes(rank=3, local_rank=1, world_size=4)


@pytest.mark.parametrize("variables", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}], ids=["none", "inside a job"])
def test_without_a_launcher_there_is_one_process(variables: dict[str, str]) -> None:
    assert read_processes(variables) == Processes(0, 0, 1)


@pytest.mark.parametrize(("variables", "named"), [
    ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
    ({"LOCAL_RANK": "-1", "WORLD_SIZE": "2"}, "LOCAL_RANK is '-1'"),
    ({"SLURM_STEP_NUM_TASKS": "two"}, "SLURM_STEP_NUM_TASKS is 'two'"),
    ({"RANK": "x"}, "RANK is 'x'"),
    ({"RANK": "3"}, "RANK=3 and WORLD_SIZE=1"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2"),
    ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 but no RANK"),
])  # fmt: skip
def test_variables_that_are_no_number_or_contradict_each_other_are_named(variables: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        read_processes(variables)


def test_a_dry_run_plans_for_processes_that_do_not_exist() -> None:
    assert read_processes({"WORLD_SIZE": "8"}, require_rank=False) == Processes(0, 0, 8)


@pytest.mark.usefixtures("own_world")
def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2"}
        for name, value in variables.items():
            os.environ[name] = value
        with pytest.raises(DstError, match=f"port {port} of 127.0.0.1.*MASTER_PORT"):
            join_world(read_processes(variables))


@pytest.mark.usefixtures("own_world")
def test_a_process_announces_that_it_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(world, "NOTICE_SECONDS", 0.0)
    variables = {"MASTER_PORT": str(world.free_port()), "RANK": "1", "WORLD_SIZE": "2"}
    for name, value in variables.items():
        os.environ[name] = value
    with pytest.raises(DstError, match=r"2 processes .*rank 0"):
        join_world(read_processes(variables), join_timeout=timedelta(seconds=1))
    (notice,) = (record.message for record in caplog.records if record.name == world.__name__)
    assert notice.startswith("rank 1 is waiting for the other processes of WORLD_SIZE=2 at 127.0.0.1:")
    assert "(this machine, because MASTER_ADDR is not set)" in notice


@pytest.mark.usefixtures("own_world")
def test_the_processes_that_did_not_join_are_named() -> None:
    variables = {"MASTER_PORT": str(world.free_port()), "RANK": "0", "WORLD_SIZE": "3"}
    for name, value in variables.items():
        os.environ[name] = value
    with pytest.raises(DstError, match=r"3 processes .*127.0.0.1:\d+ .*rank 1, 2"):
        join_world(read_processes(variables), join_timeout=timedelta(seconds=1))


def test_only_the_first_sentence_of_a_gloo_error_is_reported() -> None:
    error = RuntimeError("[/gloo/transport/tcp/pair.cc:9] Read error [10.0.0.1]:4: reset by peer. A worker died. GLHF!")
    said = r"see its own message \(Read error \[10.0.0.1\]:4: reset by peer\)$"
    with pytest.raises(DstError, match=said), world.peer_errors():
        raise error


def test_an_error_of_nccl_means_that_another_process_died() -> None:
    error = dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:3770, remote process exited. Last error: none")
    with (
        pytest.raises(PeerError, match="remote process exited"),
        peer_errors(),
    ):
        raise error


def test_two_processes_on_one_gpu_are_refused_by_all() -> None:
    port = str(world.free_port())
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    def join(rank: int) -> str:
        try:
            gpu = f"node/GPU-{min(rank, 1)}"  # ranks 1 and 2 have the same one
            world._join_store(Processes(rank, rank, 3), place, timedelta(seconds=60), gpu)
        except UserError as error:
            return str(error)
        return "joined"

    with ThreadPoolExecutor(3) as threads:
        said = list(threads.map(join, range(3)))
    assert all(message.startswith("several processes have the same GPU of ") for message in said)


@pytest.mark.parametrize(("variables", "warning"), [
    ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2, but WORLD_SIZE is not set: this process trains alone"),
    ({"SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, "SLURM_NTASKS=4, but WORLD_SIZE"),
    ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, None),
    ({"SLURM_NTASKS": "1"}, None), (SLURM, None), (LAUNCHER | {"SLURM_NTASKS": "4"}, None), ({}, None),
])  # fmt: skip
def test_a_task_that_trains_alone_among_several_is_warned(variables: dict[str, str], warning: str | None) -> None:
    said = single_process_warning(variables)
    assert said is None if warning is None else said is not None and warning in said


@pytest.fixture
def own_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what joining sets in the environment."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


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


@pytest.mark.parametrize(("name", "value", "sound"), [
    ("MASTER_PORT", "99999", False), ("MASTER_PORT", "abc", False), ("MASTER_PORT", "29500", True),
    ("OMP_NUM_THREADS", "banana", False), ("OMP_NUM_THREADS", "-3", False), ("OMP_NUM_THREADS", "0", False),
    ("OMP_NUM_THREADS", "4,2", True), ("DST_CPU_KERNELS", "off", False), ("DST_CPU_KERNELS", "0", True),
    ("DST_CPU_KERNELS", "1", True), ("DST_CPU_KERNELS", "", True),
])  # fmt: skip
def test_variables_that_libraries_read_are_checked_first(name: str, value: str, sound: bool) -> None:
    if sound:
        check_environment({name: value})
        return
    with pytest.raises(UserError, match=f"{name} is '{value}'"):
        check_environment({name: value})
