"""The processes of a run: who this one is, what it computes on, and how they agree."""

from __future__ import annotations

import logging
import os
import platform
import re
import socket
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dstransformer.errors import DstError, UserError
from dstransformer.training.processes import Processes, with_slurm

logger = logging.getLogger(__name__)

#: Seconds that a process waits for the others to start before it says so.
NOTICE_SECONDS = 15.0

#: How long the processes wait for each other to start, and for each other's part of an update.
STEP_TIMEOUT = timedelta(minutes=10)

#: Averaging, or hashing a checkpoint, on one process may keep the others waiting this long.
CONTROL_TIMEOUT = timedelta(hours=1)


@contextmanager
def losing_a_peer() -> Iterator[None]:
    """Say in one line that another process of the run has ended, which gloo tells from the connection.

    Raises:
        DstError: It has.
    """
    try:
        yield
    except RuntimeError as error:
        if "gloo/" not in str(error):
            raise
        raise DstError(
            f"another process of the run has ended or hangs; its own message says why ({_gloo_reason(error)})"
        ) from error


class World:
    """The process group. Build it with :func:`join_world`.

    Attributes:
        rank: Of this process among all.
        local_rank: Of this process among those of its machine.
        world_size: Number of processes.
        device: What this process computes on.
    """

    def __init__(self, processes: Processes, device: torch.device) -> None:
        self.rank = processes.rank
        self.local_rank = processes.local_rank
        self.world_size = processes.world_size
        self.device = device
        # Small agreements go through CPU memory, so that they never wait for the GPU, and may take long.
        self._control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that talks."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a CPU tensor over all processes."""
        total = values.clone()
        with losing_a_peer():
            dist.all_reduce(total, group=self._control)
        return total

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any process raised it."""
        raised = torch.tensor(flags, dtype=torch.int32)
        with losing_a_peer():
            dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=self._control)
        return [bool(flag) for flag in raised.tolist()]

    def gather(self, item: Any) -> list[Any]:
        """What every process brought, in order of rank."""
        items: list[Any] = [None] * self.world_size
        with losing_a_peer():
            dist.all_gather_object(items, item, group=self._control)
        return items

    def from_first(self, item: Any) -> Any:
        """What rank 0 brought."""
        items = [item]
        with losing_a_peer():
            dist.broadcast_object_list(items, src=0, group=self._control)
        return items[0]

    def barrier(self) -> None:
        """Wait for all."""
        with losing_a_peer():
            dist.barrier(group=self._control)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something that may fail on some ranks only, and end it in agreement: it also waits for all.

        Nothing collective may happen inside. Where it fails anywhere, every rank raises what the first one met.
        """
        met: Exception | None = None
        try:
            yield
        except Exception as error:
            met = error
        self.share(met)

    def share(self, met: Exception | None) -> None:
        """Raise on every rank what the first of them has met, if any has. Collective.

        Raises:
            DstError: As it is where every rank has met one, else with the name of who did.
        """
        failures = [failure for failure in self.gather(self._describe(met)) if failure is not None]
        if not failures:
            return
        if met is not None and not isinstance(met, DstError):
            raise met
        kind, text, who = failures[0]
        error = kind(text if len(failures) == self.world_size else f"{who}: {text}")
        error.shared = True
        raise error from met

    def _describe(self, met: Exception | None) -> tuple[type[DstError], str, str] | None:
        if met is None:
            return None
        who = f"rank {self.rank} on {platform.node()}"
        if isinstance(met, DstError):
            return type(met), str(met), who
        return DstError, f"{type(met).__name__}: {met}", who


def join_world(processes: Processes, environment: MutableMapping[str, str] = os.environ) -> World:
    """Meet the other processes.

    Sets what PyTorch and DeepSpeed read from the environment, where the launcher has not. Where ``OMP_NUM_THREADS``
    does not say otherwise, processes that may run on the same cores of a machine share them evenly.

    Raises:
        DstError: The processes did not meet in time, or there is no GPU for this one.
    """
    environment.update(with_slurm(environment))
    environment.setdefault("RANK", str(processes.rank))
    environment.setdefault("LOCAL_RANK", str(processes.local_rank))
    environment.setdefault("WORLD_SIZE", str(processes.world_size))
    address_given = "MASTER_ADDR" in environment
    environment.setdefault("MASTER_ADDR", "127.0.0.1")
    environment.setdefault("MASTER_PORT", str(_free_port()) if processes.world_size == 1 else "29500")
    device = _choose_device(processes, environment)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        environment.setdefault("DS_ACCELERATOR", "cpu")
    try:
        with _notice_of_waiting(processes, environment, address_given):
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                timeout=STEP_TIMEOUT,
                device_id=device if device.type == "cuda" else None,
            )
            world = World(processes, device)
        if device.type == "cpu" and "OMP_NUM_THREADS" not in environment:
            mine = platform.node(), usable_cores()
            torch.set_num_threads(_share_cores(mine, world.gather(mine)))
        return world
    except (RuntimeError, ValueError, OSError) as error:
        failure = DstError(_why_apart(error, environment))
        failure.rank = processes.rank
        raise failure from error


@contextmanager
def _notice_of_waiting(processes: Processes, environment: Mapping[str, str], address_given: bool) -> Iterator[None]:
    """Where the others do not come for a while, say once on each machine that this process waits for them."""
    host, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    unset = "" if address_given else " (MASTER_ADDR is not set: this machine)"
    text = (
        f"rank {processes.rank} waits for the other processes of WORLD_SIZE={processes.world_size} at "
        f"{host}:{port}{unset}, {round(STEP_TIMEOUT.total_seconds() / 60)} minutes at most"
    )
    timer = threading.Timer(NOTICE_SECONDS, logger.warning, (text,))
    timer.daemon = True
    if processes.world_size > 1 and processes.local_rank == 0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _why_apart(error: Exception, environment: Mapping[str, str]) -> str:
    host, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
        return (
            f"port {port} of {host}, where the processes are to meet, is in use by another program or run: choose "
            "another with MASTER_PORT in the environment, or with --master_port of deepspeed and torchrun"
        )
    return (
        f"the {environment['WORLD_SIZE']} processes did not meet at {host}:{port}: {_first_line(error)}; look for the "
        "one that failed, and see that every node reaches that address (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
    )


def usable_cores() -> frozenset[int]:
    """Numbers of this machine's cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def _share_cores(mine: tuple[str, frozenset[int]], all_ranks: Sequence[tuple[str, frozenset[int]]]) -> int:
    """Threads of a rank: its cores, shared with those of its machine that may run there as well."""
    node, cores = mine
    sharing = sum(other == node and not cores.isdisjoint(theirs) for other, theirs in all_ranks)
    return max(1, len(cores) // sharing)


def _choose_device(processes: Processes, environment: Mapping[str, str]) -> torch.device:
    wanted = environment.get("DS_ACCELERATOR")
    if wanted == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if wanted == "cuda":
            failure = UserError(f"DS_ACCELERATOR is cuda, but {platform.node()} shows no GPU: unset it to train on CPU")
            failure.rank = processes.rank
            raise failure
        return torch.device("cpu")
    if processes.local_rank >= torch.cuda.device_count():
        failure = UserError(
            f"{platform.node()} has {torch.cuda.device_count()} GPUs but its process {processes.local_rank} (from 0) "
            "was started: start one process a GPU, or hide the GPUs with CUDA_VISIBLE_DEVICES="
        )
        failure.rank = processes.rank
        raise failure
    return torch.device("cuda", processes.local_rank)


def _gloo_reason(error: Exception) -> str:
    """The first sentence of what gloo says, without the place in its source."""
    return re.sub(r"^\[[^]]*\] *", "", _first_line(error)).partition(". ")[0]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def leave_world() -> None:
    """Take the process group down, in good order."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
