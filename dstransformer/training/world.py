"""The processes of a run: who this one is, what it computes on, and how they agree."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dstransformer.errors import UserError

#: A validation or a checkpoint on rank 0 may keep the others waiting this long.
TIMEOUT = timedelta(hours=1)

_SLURM = {
    "RANK": "SLURM_PROCID",
    "LOCAL_RANK": "SLURM_LOCALID",
    "WORLD_SIZE": "SLURM_NTASKS",
    "LOCAL_WORLD_SIZE": "SLURM_NTASKS_PER_NODE",
}


@dataclass(frozen=True)
class Processes:
    """What the launcher says of this process, before it has met the others."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def read_processes(environment: Mapping[str, str]) -> Processes:
    """Read the variables that ``deepspeed``, ``torchrun`` and ``srun`` set; one process where there are none.

    Raises:
        UserError: A variable that is no number.
    """
    given = _with_slurm(environment)

    def number(name: str, default: int) -> int:
        text = given.get(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise UserError(
                f"the environment variable {name} is {text!r}, not a number: unset it or use a launcher"
            ) from None

    world_size = number("WORLD_SIZE", 1)
    local = number("LOCAL_WORLD_SIZE", number("LOCAL_SIZE", world_size))
    return Processes(number("RANK", 0), number("LOCAL_RANK", 0), world_size, local)


def _with_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables, those of SLURM under PyTorch's names. A step of several tasks is one that ``srun`` launched."""
    given = dict(environment)
    if "RANK" not in given and int(given.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        given |= {name: given[slurm] for name, slurm in _SLURM.items() if slurm in given}
    return given


class World:
    """The process group. Build it with :func:`join_world`.

    Attributes:
        rank: Of this process among all.
        world_size: Number of processes.
        device: What this process computes on.
    """

    def __init__(self, processes: Processes, device: torch.device) -> None:
        self.rank = processes.rank
        self.world_size = processes.world_size
        self.device = device
        # Small agreements go through CPU memory, so that they never wait for the GPU.
        self._control = dist.new_group(backend="gloo", timeout=TIMEOUT) if device.type == "cuda" else None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that talks."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a CPU tensor over all processes."""
        total = values.clone()
        dist.all_reduce(total, group=self._control)
        return total

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any process raised it."""
        raised = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=self._control)
        return [bool(flag) for flag in raised.tolist()]

    def gather(self, item: Any) -> list[Any]:
        """What every process brought, in order of rank."""
        items: list[Any] = [None] * self.world_size
        dist.all_gather_object(items, item, group=self._control)
        return items

    def from_first(self, item: Any) -> Any:
        """What rank 0 brought."""
        items = [item]
        dist.broadcast_object_list(items, src=0, group=self._control)
        return items[0]

    def barrier(self) -> None:
        """Wait for all."""
        dist.barrier(group=self._control)


def join_world(processes: Processes, environment: MutableMapping[str, str] = os.environ) -> World:
    """Meet the other processes.

    Sets what PyTorch and DeepSpeed read from the environment, where the launcher has not, and shares a machine's cores
    evenly between its processes where ``OMP_NUM_THREADS`` does not say otherwise.
    """
    environment.update(_with_slurm(environment))
    environment.setdefault("RANK", str(processes.rank))
    environment.setdefault("LOCAL_RANK", str(processes.local_rank))
    environment.setdefault("WORLD_SIZE", str(processes.world_size))
    environment.setdefault("MASTER_ADDR", "127.0.0.1")
    environment.setdefault("MASTER_PORT", str(_free_port()) if processes.world_size == 1 else "29500")
    if torch.cuda.is_available():
        device = torch.device("cuda", processes.local_rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        environment.setdefault("DS_ACCELERATOR", "cpu")
        if "OMP_NUM_THREADS" not in environment:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes.local_world_size))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    return World(processes, device)


def leave_world() -> None:
    """Take the process group down, in good order."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
