"""The session: a process of a run, its process group and its safeguards, as one object for the rest of the program."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

from dstransformer.config import Config
from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision.failure_detection import Limits
from dstransformer.distributed.supervision.heartbeat import HeartbeatMonitor
from dstransformer.distributed.supervision.rank_log import LOGS, RankLog, RankProcess, record_collectives, record_start
from dstransformer.distributed.supervision.stop_signals import StopRequest, StopRequested, stop_if_launcher_dies
from dstransformer.distributed.world import World, join_world, leave_world, peer_errors
from dstransformer.errors import RUN_AGAIN, DstError, PeerError, UserError

#: The timeout of process groups if ``training.wait_seconds`` is 0, and of joining if ``join_seconds`` is. PyTorch
#: cannot wait forever.
NO_TIMEOUT = timedelta(days=30)

_POLL_SECONDS = 1.0  # between two checks for a stop signal, while all ranks wait

T = TypeVar("T")


class Flags(NamedTuple):
    """What the ranks have found after an update: each flag is set if it is set on any rank.

    Attributes:
        stop: The run has been asked to stop.
        save: A checkpoint is due.
        writing: A checkpoint is still being written.
        nonfinite: A loss is NaN or infinite.
    """

    stop: bool
    save: bool
    writing: bool
    nonfinite: bool


class Session:
    """One process of a run. Build it with :func:`supervise`; ``Session(world)`` is one without supervision.

    Args:
        world: The process group.
        stop: Knows whether this process has been asked to stop.
        monitor: Watches the processes, and has the log of this one; None for a monitor that does nothing.
    """

    def __init__(self, world: World, stop: StopRequest | None = None, monitor: HeartbeatMonitor | None = None) -> None:
        self.world = world
        self._stop = stop or StopRequest()
        processes = Processes(world.rank, world.local_rank, world.world_size)
        self._monitor = monitor or HeartbeatMonitor(processes, Limits.build(0, 0, 0), RankLog(processes))

    @property
    def stopped_by(self) -> str:
        """What has asked the run to stop."""
        return self._stop.received or "a signal to another process"

    def combine_flags(self, *, save: bool, writing: bool, nonfinite: bool) -> Flags:
        """Combine what the ranks have found after an update, in its one control message. See :class:`Flags`."""
        flags = Flags(*self.world.any(self._stop.received is not None, save, writing, nonfinite))
        if flags.stop:
            self._stop.share(self.world)
        return flags

    def until_stopped(self, work: Callable[[], T]) -> T:
        """Call a function without collectives, which a request to this process ends at once. Collective.

        A signal to one process alone lets the others finish their calls first.

        Raises:
            StopRequested: A process was asked to stop.
        """
        try:
            with self._stop.raising():
                result = work()
        except StopRequested:
            self.world.any(True)
        else:
            (stopped,) = self.world.any(False)
            if not stopped:
                return result
        self._stop.share(self.world)
        raise StopRequested

    def finish_updates(self) -> None:
        """From now on a stop request ends an evaluation, not an update, as its announcement says."""
        self._stop.updates_done = True

    def wait(self, seconds: float) -> None:
        """Wait on all ranks. Collective.

        Raises:
            StopRequested: A process was asked to stop, less than a second before.
        """
        until = time.monotonic() + seconds
        while self.world.any(time.monotonic() < until)[0]:
            if self.world.any(self._stop.received is not None)[0]:
                self._stop.share(self.world)
                raise StopRequested
            time.sleep(max(0.0, min(_POLL_SECONDS, until - time.monotonic())))

    def report(self, step: int, phase: str) -> None:
        """Tell the monitor which update this process starts, and what it does in it."""
        self._monitor.report(step, phase)

    def enter(self, phase: str) -> None:
        """Tell the monitor what this process does next, at the same update."""
        self._monitor.enter(phase)

    def record_start(self, run: Path, processes: Sequence[RankProcess]) -> None:
        """Record the start of a run, with its processes by rank. Only on rank 0.

        Raises:
            StorageError: The run folder cannot be written.
        """
        record_start(run, processes, self._monitor.log.launcher)

    @contextmanager
    def recording(self, run: Path) -> Iterator[None]:
        """Write logs into the run folder, whose start is recorded, and record how the run ended if the block fails.

        Raises:
            StorageError: They cannot be written.
        """
        self._monitor.log.open(run)
        try:
            with self._watching_peers():
                yield
        except BaseException as error:
            self._monitor.record_error(error)
            raise

    @contextmanager
    def reporting_failure(self, report: Callable[[BaseException | None], None]) -> Iterator[None]:
        """Call a function with the error if the block fails; with None, in another thread, if the monitor ends it."""
        with self._monitor.calling_at_end(lambda: report(None)):
            try:
                with self._watching_peers():
                    yield
            except BaseException as error:
                self._monitor.record_error(error)  # before other ranks come to a verdict
                self._monitor.stop(error)
                report(error)
                raise

    def end(self, status: int) -> None:
        """Record that the run ends without an error, with this exit status. Collective."""
        if self.world.is_rank0 and status == RUN_AGAIN:
            self._monitor.log.record_end("stopped", f"stopped by {self.stopped_by}", status)
        elif self.world.is_rank0:
            self._monitor.log.record_end("finished", "finished", status)
        self.world.barrier()

    @contextmanager
    def _watching_peers(self) -> Iterator[None]:
        """Run a block. If it fails because another process is gone, the monitor names that process and ends this one.

        If the run is stopping and its time is over, this process exits as the other one did.

        Raises:
            PeerError: Another process is gone, and the monitor came to no verdict in time.
        """
        try:
            with peer_errors():
                yield
        except PeerError as error:
            self._stop.exit_if_overdue()
            self._monitor.wait_for_verdict(error)
            raise

    @contextmanager
    def _leaving_world(self) -> Iterator[None]:
        """Destroy the process group at the end; after an error of this rank only, that would wait for the others."""
        try:
            yield
        except DstError as error:
            self._monitor.stop(error)
            if error.shared:
                leave_world()
            else:
                error.rank = self.world.rank
                self._leave_if_alone()
            raise
        except BaseException:
            self._leave_if_alone()
            raise
        self._monitor.stop()
        leave_world()

    def _leave_if_alone(self) -> None:
        """Let the only process join again, in a notebook. One of several would wait for the others."""
        if self.world.world_size == 1:
            leave_world()


@contextmanager
def supervise(processes: Processes, config: Config, run: Path) -> Iterator[Session]:
    """Join the process group, and watch over this process until the block ends.

    A process that hangs or dies ends the run, and a stop signal ends it with a checkpoint. What this process does is
    logged. The run folder need not exist.

    Raises:
        DstError: The processes did not join.
        UserError: This process has trained before, or this is not its main thread.
    """
    _check_process()
    limits = config.training
    timeouts = Limits.build(limits.hang_seconds, limits.wait_seconds, limits.silence_seconds)
    with RankLog(processes) as log, HeartbeatMonitor(processes, timeouts, log) as monitor:
        record_collectives(os.environ, run / LOGS)
        world = join_world(
            processes,
            timeout=_timeout(limits.wait_seconds),
            join_timeout=_timeout(limits.join_seconds),
            on_joined=monitor.start,
            waiting=monitor.waiting,
        )
        # Catch signals from here on: a process killed while DeepSpeed loads an operator leaves a lock file behind.
        stop = StopRequest(
            announce=processes.rank == 0,
            processes=processes.world_size,
            seconds=config.checkpoint.stop_seconds,
            before_exit=lambda reason: processes.rank or log.record_end("stopped", reason, RUN_AGAIN),
        )
        session = Session(world, stop, monitor)
        with (
            stop,
            stop_if_launcher_dies(os.environ, stop),
            session._leaving_world(),
            session._watching_peers(),
        ):
            yield session


def _check_process() -> None:
    """Refuse what a notebook may do and a command cannot: train twice in one process, or in another thread.

    DeepSpeed keeps the process group of the first training for the life of the process, and Python handles signals in
    the main thread only.
    """
    if getattr(sys.modules.get("deepspeed.comm.comm"), "cdb", None) is not None:
        raise UserError(
            "this process has already trained, and DeepSpeed's process group stays for its life: restart the kernel, "
            "or train in a new process with `dst train`"
        )
    if threading.current_thread() is not threading.main_thread():
        raise UserError("training handles signals, which Python does in the main thread only: call train there")


def _timeout(seconds: float) -> timedelta:
    return timedelta(seconds=seconds) if seconds else NO_TIMEOUT
