"""What a launcher says of this process. No torch, so that it is known before anything slow is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dstransformer.errors import UserError, shown

#: What DeepSpeed may compute on here, of the names that it takes.
ACCELERATORS = ("cpu", "cuda")

#: Where launchers that are not read here, or whose step has one task, say how many processes they started.
_UNREAD = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")

_SLURM = {
    "RANK": "SLURM_PROCID",
    "LOCAL_RANK": "SLURM_LOCALID",
    "WORLD_SIZE": "SLURM_NTASKS",
}


@dataclass(frozen=True)
class Processes:
    """What the launcher says of this process, before it has met the others."""

    rank: int
    local_rank: int
    world_size: int


class LauncherError(UserError):
    """The variables that a launcher sets contradict each other: no process knows whether it is the one that talks."""


def read_processes(environment: Mapping[str, str], *, alone: bool = False) -> Processes:
    """Read the variables that ``deepspeed``, ``torchrun`` and ``srun`` set; one process where there are none.

    Args:
        environment: The variables.
        alone: One process plans for ``WORLD_SIZE``, and meets no others.

    Raises:
        LauncherError: A variable that is no number, out of its range or missing, by name.
    """
    given = with_slurm(environment)
    world_size = _number(given, "WORLD_SIZE", 1, least=1)
    rank = _number(given, "RANK", 0, least=0)
    local_rank = _number(given, "LOCAL_RANK", 0, least=0)
    if world_size > 1 and "RANK" not in given and not alone:
        raise LauncherError(
            f"the environment says WORLD_SIZE={world_size}, but no RANK: this process would wait for others that "
            f"nobody starts; start all with `deepspeed --num_gpus {world_size} --module dstransformer train …`, "
            "torchrun or srun, or unset WORLD_SIZE to train in one process"
        )
    if rank >= world_size:
        raise LauncherError(
            f"the environment says RANK={rank} of WORLD_SIZE={world_size}, but ranks count from 0: "
            "unset both or use a launcher"
        )
    return Processes(rank, local_rank, world_size)


def check_accelerator(environment: Mapping[str, str]) -> None:
    """Refuse what ``DS_ACCELERATOR`` asks for where training does not run on it.

    Raises:
        UserError: It names neither ``cpu`` nor ``cuda``.
    """
    accelerator = environment.get("DS_ACCELERATOR", ACCELERATORS[0])
    if accelerator not in ACCELERATORS:
        raise UserError(
            f"the environment variable DS_ACCELERATOR is {shown(accelerator)}, but training runs on "
            f"{' or '.join(ACCELERATORS)}: unset it"
        )


def trains_alone(environment: Mapping[str, str]) -> str | None:
    """A warning where several processes were started, or may be meant, and this one would train without the others."""
    given = with_slurm(environment)
    if "WORLD_SIZE" in given:
        return None
    for name in _UNREAD:
        if name == "SLURM_NTASKS" and "SLURM_STEP_NUM_TASKS" in given:
            continue  # a step of one task
        text = given.get(name, "")
        if text.isascii() and text.isdecimal() and int(text) > 1:
            return (
                f"{name}={text}, but WORLD_SIZE is not set: this process trains alone; start several with srun, "
                "torchrun or deepspeed"
            )
    return None


def with_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables, those of SLURM under PyTorch's names. A step of several tasks is one that ``srun`` launched."""
    given = dict(environment)
    if "RANK" not in given and _number(given, "SLURM_STEP_NUM_TASKS", 1, least=1) > 1:
        given |= {name: given[slurm] for name, slurm in _SLURM.items() if slurm in given}
    return given


def _number(environment: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise LauncherError(
            f"the environment variable {name} is {text!r}, not a number from {least} on: unset it or use a launcher"
        )
    return int(text)
