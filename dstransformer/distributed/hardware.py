"""The hardware of a process: its device, its CPU cores, and the variables that PyTorch and DeepSpeed read of them."""

from __future__ import annotations

import logging
import os
import platform
import resource
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from dstransformer.distributed.launcher import Processes
from dstransformer.errors import UserError

logger = logging.getLogger(__name__)

#: Variables for GPUs, unless they are set. If NCCL fails, PyTorch aborts its communicator and not the process, which
#: then raises, names the rank that died and records its exit status. NCCL's heartbeat would end a job that was
#: suspended; ours does not. PyTorch counts it in milliseconds in an int of 32 bits: beyond 24 days the threads that
#: watch it would not sleep. cuDNN's attention builds a plan for every new size, which takes longer than an update.
CUDA_VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(24 * 24 * 3600),
    "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
}

#: Files that a process may have open at once: gloo's groups, and rank 0's store, have a connection to every process.
_OPEN_FILES = 65_536

#: Exists where an NVIDIA driver is loaded.
NVIDIA_DEVICE = Path("/dev/nvidiactl")


def usable_cores() -> frozenset[int]:
    """The CPU cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def share_cores(own: tuple[str, frozenset[int]], all_ranks: Sequence[tuple[str, frozenset[int]]]) -> int:
    """Number of threads of a rank: its cores, divided by the ranks of its node that may run on any of them."""
    node, cores = own
    sharing = sum(other_node == node and not cores.isdisjoint(other_cores) for other_node, other_cores in all_ranks)
    return max(1, len(cores) // sharing)


def choose_device(processes: Processes, environment: Mapping[str, str]) -> torch.device:
    """The GPU of the local rank, or the only visible one: ``srun --gpus-per-task`` shows each process its own."""
    accelerator = environment.get("DS_ACCELERATOR")
    if accelerator == "cpu":
        return torch.device("cpu")
    failure: UserError | None = None
    if not torch.cuda.is_available():
        if accelerator != "cuda":
            if processes.local_rank == 0:
                warn_of_driver_problem("trains", environment)
            return torch.device("cpu")
        failure = UserError(
            f"DS_ACCELERATOR is cuda, but {platform.node()} has no visible GPU: unset it to train on the CPU"
        )
    elif 1 < torch.cuda.device_count() <= processes.local_rank:
        failure = UserError(
            f"{platform.node()} has {torch.cuda.device_count()} GPUs, too few for local rank {processes.local_rank}: "
            "start one process per GPU, or hide the GPUs with CUDA_VISIBLE_DEVICES="
        )
    if failure is not None:
        failure.rank = processes.rank
        raise failure
    return torch.device("cuda", processes.local_rank if torch.cuda.device_count() > 1 else 0)


def warn_of_driver_problem(does: str, environment: Mapping[str, str] = os.environ) -> None:
    """Warn if the CPU does something, such as ``trains``, because PyTorch cannot use the GPUs of this machine."""
    if (problem := find_driver_problem(environment)) is not None:
        logger.warning(
            "%s has an NVIDIA GPU that PyTorch %s cannot use (%s), so the CPU %s: install a PyTorch that fits the "
            "driver, or a newer driver", platform.node(), torch.__version__, problem, does,
        )  # fmt: skip


def find_driver_problem(environment: Mapping[str, str]) -> str | None:
    """Why PyTorch cannot use the GPUs of this machine; None if there are none, they are hidden, or it can."""
    is_hidden = environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    if is_hidden or not NVIDIA_DEVICE.exists():
        return None
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # not compiled with CUDA; the driver is too old
        return str(error).splitlines()[0].partition(". ")[0]
    return None


def set_device_variables(environment: MutableMapping[str, str], device: torch.device) -> None:
    """Set what PyTorch and DeepSpeed read of a device, unless the user has set it.

    DeepSpeed takes the local rank for the number of the GPU, also where each process sees only its own.
    """
    if device.type == "cuda":
        environment["LOCAL_RANK"] = str(device.index)
    for name, value in (CUDA_VARIABLES if device.type == "cuda" else {"DS_ACCELERATOR": "cpu"}).items():
        environment.setdefault(name, value)


def raise_file_limit() -> None:
    """Raise the limit of open files, often 1,024, as far as the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < files:
        with suppress(OSError, ValueError):  # the system has a lower one
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def gpu_identity(device: torch.device) -> str | None:
    """What identifies a GPU among all of a cluster; None for a CPU."""
    return None if device.type != "cuda" else f"{platform.node()}/{torch.cuda.get_device_properties(device).uuid}"
