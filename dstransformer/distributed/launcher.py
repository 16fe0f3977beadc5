"""Reads the environment variables set by launchers. Does not import torch, so that errors are reported at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from dstransformer.config import uses_cpu_kernels
from dstransformer.errors import UserError, shown

logger = logging.getLogger(__name__)

#: The DeepSpeed accelerators that training supports.
ACCELERATORS = ("cpu", "cuda")

#: Number of processes in the variables of launchers that are not supported, or of a SLURM job without ``srun``.
_OTHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")

_SLURM_NAMES = {
    "RANK": "SLURM_PROCID",
    "LOCAL_RANK": "SLURM_LOCALID",
    "WORLD_SIZE": "SLURM_NTASKS",
}


@dataclass(frozen=True)
class Processes:
    """The ranks and the world size that the launcher assigned to this process."""

    rank: int
    local_rank: int
    world_size: int


class LauncherError(UserError):
    """The launcher variables are inconsistent, so no process knows whether it should report the errors of all."""


def check_launch(environment: Mapping[str, str]) -> Processes:
    """Read and check the environment of a process that trains. Warns if it seems to be one of several, but is alone.

    Raises:
        UserError: A variable is wrong.
    """
    processes = read_processes(environment)
    try:
        check_environment(environment)
    except UserError as error:
        error.rank = processes.rank  # the environment of other nodes may be right: each rank reports its own
        raise
    if (warning := single_process_warning(environment)) is not None:
        logger.warning(warning)
    return processes


def read_processes(environment: Mapping[str, str], *, require_rank: bool = True) -> Processes:
    """Read the variables set by ``deepspeed``, ``torchrun`` or ``srun``. Without any, there is one process.

    Args:
        environment: The environment variables.
        require_rank: Refuse ``WORLD_SIZE`` without ``RANK``. A dry run plans for ``WORLD_SIZE`` in a single process.

    Raises:
        LauncherError: A variable is missing, not a number or out of range.
    """
    variables = add_slurm_variables(environment)
    world_size = _read_number(variables, "WORLD_SIZE", 1, minimum=1)
    rank = _read_number(variables, "RANK", 0, minimum=0)
    local_rank = _read_number(variables, "LOCAL_RANK", 0, minimum=0)
    if world_size > 1 and "RANK" not in variables and require_rank:
        raise LauncherError(
            f"the environment sets WORLD_SIZE={world_size} but no RANK: this process would wait for others that "
            f"were never started; start them with `deepspeed -q --num_gpus {world_size} --module dstransformer train "
            "…`, torchrun or srun, or unset WORLD_SIZE to train in one process"
        )
    if rank >= world_size:
        raise LauncherError(
            f"the environment sets RANK={rank} and WORLD_SIZE={world_size}, but ranks count from 0: "
            "unset both or use a launcher"
        )
    return Processes(rank, local_rank, world_size)


def launcher_name(environment: Mapping[str, str]) -> str:
    """The program that started this process, as its variables say."""
    if "TORCHELASTIC_RUN_ID" in environment:
        return "torchrun"
    if "RANK" not in environment and "SLURM_STEP_NUM_TASKS" in environment:
        return "srun"
    if "CROSS_RANK" in environment:
        return "deepspeed"
    return "another launcher" if "WORLD_SIZE" in environment else "no launcher"


def local_world_size(environment: Mapping[str, str], processes: Processes) -> int:
    """The number of processes on this machine, as ``torchrun``, ``deepspeed`` or ``srun`` say; else of all."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        text = environment.get(name, "")
        if text.isascii() and text.isdecimal() and int(text):
            return min(int(text), processes.world_size)
    return processes.world_size


def check_environment(environment: Mapping[str, str]) -> None:
    """Check the variables that PyTorch, OpenMP and DeepSpeed read later, where a mistake is hard to recognise.

    Raises:
        UserError: ``DS_ACCELERATOR`` is neither ``cpu`` nor ``cuda``, ``MASTER_PORT`` is not a port,
            ``OMP_NUM_THREADS`` is not a number of threads, or ``DST_CPU_KERNELS`` is not 0 or 1.
    """
    uses_cpu_kernels(environment)
    for name, largest in (("MASTER_PORT", 65535), ("OMP_NUM_THREADS", 2**16)):
        value = environment.get(name, "1").partition(",")[0].strip()
        if not (value.isascii() and value.isdecimal()) or not 1 <= int(value) <= largest:
            raise UserError(
                f"the environment variable {name} is {shown(environment[name])}: set a whole number from 1 to "
                f"{largest}, or unset it"
            )
    accelerator = environment.get("DS_ACCELERATOR", ACCELERATORS[0])
    if accelerator not in ACCELERATORS:
        raise UserError(
            f"the environment variable DS_ACCELERATOR is {shown(accelerator)}, but training runs on "
            f"{' or '.join(ACCELERATORS)}: unset it"
        )


def single_process_warning(environment: Mapping[str, str]) -> str | None:
    """A warning if several processes seem to have been started but this one would train alone, else None."""
    variables = add_slurm_variables(environment)
    if "WORLD_SIZE" in variables:
        return None
    for name in _OTHER_SIZES:
        if name == "SLURM_NTASKS" and "SLURM_STEP_NUM_TASKS" in variables:
            continue  # a step of one task
        text = variables.get(name, "")
        if text.isascii() and text.isdecimal() and int(text) > 1:
            return (
                f"{name}={text}, but WORLD_SIZE is not set: this process trains alone; start several with srun, "
                "torchrun or deepspeed"
            )
    return None


def add_slurm_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Add PyTorch's names for the SLURM variables. Only ``srun`` launches a step of several tasks."""
    variables = dict(environment)
    if "RANK" not in variables and _read_number(variables, "SLURM_STEP_NUM_TASKS", 1, minimum=1) > 1:
        variables |= {name: variables[slurm] for name, slurm in _SLURM_NAMES.items() if slurm in variables}
    return variables


def _read_number(environment: Mapping[str, str], name: str, default: int, *, minimum: int) -> int:
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text) < minimum:
        raise LauncherError(
            f"the environment variable {name} is {text!r}, not a number >= {minimum}: unset it or use a launcher"
        )
    return int(text)
