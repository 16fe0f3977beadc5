"""The process group of a run: ranks, collectives on CPU tensors, and errors shared by all ranks."""

from __future__ import annotations

import logging
import os
import platform
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d

from dstransformer.distributed.hardware import (
    choose_device,
    gpu_identity,
    raise_file_limit,
    set_device_variables,
    usable_cores,
)
from dstransformer.distributed.launcher import Processes, add_slurm_variables
from dstransformer.errors import DstError, PeerError, UserError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Seconds a process waits for the others to join before it logs that it is waiting.
NOTICE_SECONDS = 15.0

#: How long a process waits for the others to join, in programs that do not state it.
JOIN_TIMEOUT = timedelta(minutes=10)

#: Maximum number of absent processes that an error names.
_MAX_NAMED = 8

#: Seconds for which rank 0 keeps the store, so that the others can see what is wrong.
_KEEP_STORE_SECONDS = 2.0

#: Timeout of collectives in programs that state none.
GROUP_TIMEOUT = timedelta(hours=1)


class _Failure(NamedTuple):
    """An error as the other ranks hear of it.

    Attributes:
        kind: Its type; ``DstError`` of an error that is not one.
        text: Its message.
        origin: The rank and machine that it came from.
    """

    kind: type[DstError]
    text: str
    origin: str


@contextmanager
def peer_errors() -> Iterator[None]:
    """Turn errors of gloo, NCCL and the store, which mean that another process died, into a one-line error.

    Raises:
        PeerError: Another process has died or does not respond.
    """
    try:
        yield
    except RuntimeError as error:
        failures = dist.DistNetworkError | dist.DistStoreError | dist.DistBackendError
        if "gloo/" not in str(error) and not isinstance(error, failures):
            raise
        reason = re.sub(r"^\[[^]]*\] *", "", _first_line(error)).partition(". ")[0]  # without the source location
        raise PeerError(
            f"another process of the run has ended or does not respond; see its own message ({reason})"
        ) from error


class World:
    """The process group. Build it with :func:`join_world`.

    Each collective is called in a context that ``waiting`` builds.

    Attributes:
        rank: Rank of this process in the run.
        local_rank: Rank of this process on its node.
        world_size: Number of processes.
        device: The device of this process.
    """

    def __init__(
        self,
        processes: Processes,
        device: torch.device,
        timeout: timedelta = GROUP_TIMEOUT,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.rank = processes.rank
        self.local_rank = processes.local_rank
        self.world_size = processes.world_size
        self.device = device
        self._waiting = waiting
        # Control messages use gloo, so that they never wait for the GPU.
        self._control = dist.new_group(backend="gloo", timeout=timeout)

    @property
    def is_rank0(self) -> bool:
        """Whether this is rank 0, which logs and writes the run's files; every rank writes its part of a checkpoint."""
        return self.rank == 0

    def all_reduce(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a CPU tensor over all ranks."""
        total = values.clone()
        with self._collective():
            dist.all_reduce(total, group=self._control)
        return total

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set on any rank. One thread votes at a time."""
        raised = torch.tensor(flags, dtype=torch.int32)
        with self._collective():
            self._raise_flags(raised)
        return [bool(flag) for flag in raised.tolist()]

    def _raise_flags(self, raised: torch.Tensor) -> None:
        """Set each flag that any rank has set. With N ranks this takes some log2(N) steps, where a ring takes 2 N.

        In each step two ranks tell each other all they know, at twice the distance of the step before (recursive
        doubling). Ranks beyond the greatest power of two tell another one first, which tells them the result.
        """
        rank, doubling = self.rank, 1 << (self.world_size.bit_length() - 1)
        if rank >= doubling:
            dist.send(raised, rank - doubling, group=self._control)
            dist.recv(raised, rank - doubling, group=self._control)
            return
        has_other, other = rank + doubling < self.world_size, torch.empty_like(raised)
        if has_other:
            dist.recv(other, rank + doubling, group=self._control)
            torch.maximum(raised, other, out=raised)
        distance = 1
        while distance < doubling:
            partner = rank ^ distance
            sent = dist.isend(raised, partner, group=self._control)
            dist.recv(other, partner, group=self._control)
            assert sent is not None
            sent.wait()
            torch.maximum(raised, other, out=raised)
            distance *= 2
        if has_other:
            dist.send(raised, rank + doubling, group=self._control)

    def gather(self, item: Any) -> list[Any]:
        """Gather the items of all ranks, in rank order, on every rank."""
        items: list[Any] = [None] * self.world_size
        with self._collective():
            dist.all_gather_object(items, item, group=self._control)
        return items

    def broadcast(self, item: Any) -> Any:
        """Broadcast the item of rank 0 to every rank."""
        items = [item]
        with self._collective():
            dist.broadcast_object_list(items, src=0, group=self._control)
        return items[0]

    def compute_on_rank0(self, compute: Callable[[], T]) -> T:
        """Call a function on rank 0 only, and broadcast its result, or its error, to every rank."""
        result: T | None = None
        raised: Exception | None = None
        if self.is_rank0:
            try:
                result = compute()
            except Exception as error:
                raised = error
        received: tuple[T, _Failure | None] = self.broadcast((result, self._describe(raised)))
        result, failure = received
        self._raise_first([failure], raised)
        return result

    def decide_on_rank0(self, collect: Callable[[], T], decide: Callable[[list[T]], R]) -> R:
        """Let rank 0 decide for all ranks by what each of them knows: a gather and a broadcast.

        Args:
            collect: Called on every rank; returns what it knows.
            decide: Called on rank 0 with what the ranks know, in their order, unless ``collect`` failed on any.

        Raises:
            DstError: The error of ``collect`` on the lowest rank that has one, or of ``decide``; raised on all ranks.
        """
        knowledge: T | None = None
        raised: Exception | None = None
        try:
            knowledge = collect()
        except Exception as error:
            raised = error
        reports: list[tuple[T, _Failure | None]] = self.gather((knowledge, self._describe(raised)))
        self._raise_first([failure for _, failure in reports], raised)
        return self.compute_on_rank0(lambda: decide([knowledge for knowledge, _ in reports]))

    def exchange(self, values: torch.Tensor, given: Sequence[int], taken: Sequence[int]) -> torch.Tensor:
        """Send each rank a part of a tensor on the device, and receive a part of its tensor.

        Args:
            values: ``(sum(given),)``, the parts in rank order.
            given: Elements of this rank's tensor for each rank.
            taken: Elements for this rank of each rank's tensor.

        Returns:
            ``(sum(taken),)``, the parts in rank order.
        """
        received = values.new_empty(sum(taken))
        with peer_errors():
            dist.all_to_all_single(received, values, list(taken), list(given))
        return received

    def barrier(self) -> None:
        """Wait for all ranks."""
        with self._collective():
            dist.barrier(group=self._control)

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """The context of a collective: this process waits for the others, one of which may be gone."""
        with self._waiting(), peer_errors():
            yield

    @contextmanager
    def collective_errors(self) -> Iterator[None]:
        """Run a block that may fail on some ranks only. All ranks agree on the outcome; acts as a barrier.

        The block must not call collectives. If it fails on any rank, all ranks raise the error of the lowest such rank.
        """
        raised: Exception | None = None
        try:
            yield
        except Exception as error:
            raised = error
        self.raise_any(raised)

    def raise_any(self, raised: Exception | None) -> None:
        """If any rank has ``raised`` an error, raise that of the lowest such rank on all ranks. Collective.

        Raises:
            DstError: The error, unchanged if every rank has one, else prefixed with the rank it came from.
        """
        self._raise_first(self.gather(self._describe(raised)), raised)

    def _describe(self, error: Exception | None) -> _Failure | None:
        if error is None:
            return None
        origin = f"rank {self.rank} on {platform.node()}"
        if isinstance(error, DstError):
            return _Failure(type(error), str(error), origin)
        return _Failure(DstError, f"{type(error).__name__}: {error}", origin)

    def _raise_first(self, of_ranks: Sequence[_Failure | None], raised: Exception | None) -> None:
        """Raise the first of the errors that all ranks know by now, if there is one; see :meth:`raise_any`."""
        failures = [failure for failure in of_ranks if failure is not None]
        if not failures:
            return
        if raised is not None and not isinstance(raised, DstError):
            raise raised
        first = failures[0]
        error = first.kind(first.text if len(failures) == self.world_size else f"{first.origin}: {first.text}")
        error.shared = True
        raise error from raised


def join_world(
    processes: Processes,
    environment: MutableMapping[str, str] = os.environ,
    *,
    timeout: timedelta = GROUP_TIMEOUT,
    join_timeout: timedelta = JOIN_TIMEOUT,
    on_joined: Callable[[str, int, str], None] = lambda *_: None,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> World:
    """Join the process group.

    Sets the variables that PyTorch and DeepSpeed read, unless the launcher has set them, but on a GPU the local rank
    becomes the number of the GPU. If ``OMP_NUM_THREADS`` is not set, the process has as many threads as cores.

    Args:
        processes: Rank of this process, and the number of them.
        environment: The environment variables.
        timeout: The timeout of the collectives of every process group, including DeepSpeed's.
        join_timeout: How long to wait for the other processes.
        on_joined: Called as soon as all processes have joined, with host, port and the prefix of keys of their store.
        waiting: Builds a context in which each collective is called, see :class:`World`.

    Raises:
        DstError: The other processes did not join in time, or there is no GPU for this process.
    """
    environment.update(add_slurm_variables(environment))
    environment.setdefault("RANK", str(processes.rank))
    environment.setdefault("LOCAL_RANK", str(processes.local_rank))
    environment.setdefault("WORLD_SIZE", str(processes.world_size))
    address_given = "MASTER_ADDR" in environment
    environment.setdefault("MASTER_ADDR", "127.0.0.1")
    environment.setdefault("MASTER_PORT", str(free_port()) if processes.world_size == 1 else "29500")
    device = choose_device(processes, environment)
    set_device_variables(environment, device)
    raise_file_limit()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        with _log_if_waiting(processes, environment, address_given, join_timeout):
            store = _join_store(processes, environment, join_timeout, gpu_identity(device))
            on_joined(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), _prefix(environment))
            store.set_timeout(timeout)
            _set_default_timeout(timeout)
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore(f"{_prefix(environment)}default_pg", store),
                rank=processes.rank,
                world_size=processes.world_size,
                timeout=timeout,
                device_id=device if device.type == "cuda" else None,
            )
            world = World(processes, device, timeout, waiting)
        if "OMP_NUM_THREADS" not in environment:
            torch.set_num_threads(len(usable_cores()))
        return world
    except (RuntimeError, ValueError, OSError) as error:
        failure = DstError(_describe_join_failure(error, environment))
        failure.rank = processes.rank
        raise failure from error


def _set_default_timeout(timeout: timedelta) -> None:
    """Set the timeout of groups that are built without one, as DeepSpeed's are."""
    group_defaults: Any = distributed_c10d
    group_defaults.default_pg_timeout = group_defaults.default_pg_nccl_timeout = timeout


def _join_store(
    processes: Processes, environment: Mapping[str, str], join_timeout: timedelta, gpu: str | None
) -> Store:
    """Wait in a store until all processes have joined, and return the store.

    ``gpu`` identifies the GPU of this process among all; None on a CPU.

    Raises:
        DstError: Some processes did not join in time.
        UserError: Two processes have the same GPU.
        RuntimeError: The connection to the store was lost.
    """
    deadline = time.monotonic() + join_timeout.total_seconds()
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    # torchrun's agent has a store at that address. Otherwise it is rank 0's.
    has_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = processes.rank == 0 and not has_agent
    try:
        size = processes.world_size
        store = TCPStore(host, port, size, serves, join_timeout, wait_for_workers=False, multi_tenant=serves)
    except dist.DistNetworkError as error:
        if serves:
            raise
        raise _join_error(
            processes, f"{host}:{port}", join_timeout, "nothing answers there, where rank 0 should"
        ) from error
    joined = PrefixStore(f"{_prefix(environment)}joined", store)
    joined.set(str(processes.rank), "")
    if gpu is not None and joined.add(f"gpu/{gpu}", 1) > 1:
        joined.set("shared", platform.node())
    if joined.add("count", 1) == processes.world_size:
        joined.set("all", "")
    try:
        joined.wait(["all"], timedelta(seconds=max(1.0, deadline - time.monotonic())))
    except dist.DistStoreError as error:
        missing = [rank for rank in range(processes.world_size) if not joined.check([str(rank)])]
        if not missing:
            return store
        names = ", ".join(map(str, missing[:_MAX_NAMED])) + (", ..." if len(missing) > _MAX_NAMED else "")
        if serves:
            time.sleep(_KEEP_STORE_SECONDS)
        raise _join_error(processes, f"{host}:{port}", join_timeout, f"rank {names} is missing") from error
    if joined.check(["shared"]):
        failure = UserError(
            f"several processes have the same GPU of {joined.get('shared').decode()}: start one process per GPU, with "
            "--gpus-per-node, or with --gpus-per-task for one GPU each"
        )
        failure.rank = processes.rank
        if serves:
            time.sleep(_KEEP_STORE_SECONDS)
        raise failure
    return store


def _join_error(processes: Processes, address: str, timeout: timedelta, what: str) -> DstError:
    failure = DstError(
        f"the {processes.world_size} processes did not join at {address} in {timeout.total_seconds():g} s: {what}; "
        "look at what the missing ones printed, if they were started at all, and check that every node can reach that "
        "address (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
    )
    failure.rank = processes.rank
    return failure


def _prefix(environment: Mapping[str, str]) -> str:
    """The prefix of this attempt's keys in the store, which torchrun keeps when it restarts the processes."""
    return f"dst/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}/"


@contextmanager
def _log_if_waiting(
    processes: Processes, environment: Mapping[str, str], address_given: bool, join_timeout: timedelta
) -> Iterator[None]:
    """Log, once per node and after ``NOTICE_SECONDS``, that this process is waiting for the others."""
    host, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    unset = "" if address_given else " (this machine, because MASTER_ADDR is not set)"
    text = (
        f"rank {processes.rank} is waiting for the other processes of WORLD_SIZE={processes.world_size} at "
        f"{host}:{port}{unset}, for up to {join_timeout.total_seconds():g} s"
    )
    timer = threading.Timer(NOTICE_SECONDS, logger.warning, (text,))
    timer.daemon = True
    if processes.world_size > 1 and processes.local_rank == 0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _describe_join_failure(error: Exception, environment: Mapping[str, str]) -> str:
    host, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
        return (
            f"port {port} of {host}, where the processes join, is in use by another program or run: choose another "
            "with MASTER_PORT in the environment, or with --master_port of deepspeed and torchrun"
        )
    return (
        f"the {environment['WORLD_SIZE']} processes did not join at {host}:{port}: {_first_line(error)}; look for the "
        "one that failed, and check that every node can reach that address (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def raise_on_all(
    error: Exception, processes: Processes, environment: MutableMapping[str, str] = os.environ
) -> NoReturn:
    """Raise an error of this process on all ranks, which call :meth:`World.decide_on_rank0` once they have joined.

    A process alone raises the error as it is.
    """

    def fail() -> NoReturn:
        raise error

    if processes.world_size > 1:
        world = join_world(processes, environment)
        try:
            world.decide_on_rank0(fail, lambda _: None)
        finally:
            leave_world()
    raise error


def leave_world() -> None:
    """Destroy the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def free_port() -> int:
    """A port of this machine that no program listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
