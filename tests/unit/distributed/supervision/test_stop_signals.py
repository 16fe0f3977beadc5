from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dstransformer.distributed.supervision.stop_signals import (
    STOP_SIGNALS,
    StopRequest,
    launcher_processes,
    watch_launcher,
)
from dstransformer.errors import RUN_AGAIN
from dstransformer.io.command import Stopped, stopped_by_signals


def test_the_first_interrupt_requests_a_stop_and_the_second_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with StopRequest(announce=True) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.received == "SIGINT"
        assert capfd.readouterr().err == (
            "dst: SIGINT: the run stops after this update and writes a checkpoint; again stops it at once\n"
        )
        signal.raise_signal(signal.SIGTERM)  # a launcher passes the interrupt on
        assert stop.received == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""


def test_with_several_processes_a_checkpoint_needs_all_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    with StopRequest(announce=True, processes=2):
        signal.raise_signal(signal.SIGTERM)
    assert capfd.readouterr().err == (
        "dst: SIGTERM: the run stops after this update and writes a checkpoint if all its processes still run; again "
        "stops it at once\n"
    )


@pytest.mark.parametrize(("first", "waited", "status"), [
    ("SIGHUP", 0.0, 0),
    ("SIGHUP", 9.0, RUN_AGAIN),
    ("SIGTERM", 9.0, RUN_AGAIN),
    ("SIGUSR1", 9.0, 0),
])  # fmt: skip
def test_a_later_signal_ends_the_process(first: str, waited: float, status: int) -> None:
    """One that follows at once is the same request: launchers signal a group and then each process.

    SLURM's SIGUSR1 is a warning: the SIGTERM at the time limit leaves ``KillWait`` seconds for a checkpoint.
    """
    program = f"""
import signal, time
from dstransformer.distributed.supervision.stop_signals import StopRequest
now = 0.0
time.monotonic = lambda: now
with StopRequest() as stop:
    signal.raise_signal(signal.{first})
    now = {waited}
    signal.raise_signal(signal.SIGTERM)
    assert stop.received == "SIGTERM"
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == status


#: A main thread that waits for ever, as in a collective, and handles no signal.
HANGING = """
import ctypes, os, sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from dstransformer.distributed.supervision import stop_signals
stop_signals.SAME_REQUEST_SECONDS = -1.0
write = lambda _: Path(sys.argv[2]).write_text("left")
with stop_signals.StopRequest(announce=True, seconds=float(sys.argv[1]), before_exit=write) as stop:
    print("ready", flush=True)
    threads, mutex, condition = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    threads.pthread_mutex_lock(mutex)
    threads.pthread_cond_wait(condition, mutex)
"""


@pytest.mark.parametrize(("seconds", "numbers", "reason"), [
    (0.5, [signal.SIGUSR1], "stopped without a checkpoint: 0.5 s were too few (checkpoint.stop_seconds)"),
    (0.0, [signal.SIGTERM, signal.SIGHUP], "stopped at the second signal"),
])  # fmt: skip
def test_a_hanging_process_leaves_at_its_deadline_or_at_the_second_signal(
    tmp_path: Path, seconds: float, numbers: list[signal.Signals], reason: str
) -> None:
    left = tmp_path / "left"
    command = [sys.executable, "-c", HANGING, str(seconds), str(left)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in numbers:
            process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == RUN_AGAIN
    # The main thread announces the first signal if it comes before the wait.
    assert errors.endswith(f"dst: {reason}; the same command resumes from the last complete checkpoint\n")
    assert left.read_text() == "left"


@pytest.mark.parametrize(
    ("shared", "cause", "event"),
    [
        ((1.0, "SIGUSR1", None), "SIGUSR1 to rank 1", "SIGUSR1 to rank 1"),
        ((1.0, "its end", ("its end", "it was killed")), "its end", "it was killed"),
    ],
)
def test_a_process_without_a_signal_adopts_the_cause_of_another(
    shared: tuple[object, ...], cause: str, event: str, capfd: pytest.CaptureFixture[str]
) -> None:
    world: Any = SimpleNamespace(gather=lambda own: [own, shared])
    with StopRequest(announce=True, processes=2) as stop:
        stop.share(world)
        stop.share(world)
        assert stop.received == cause
    assert capfd.readouterr().err == (
        f"dst: {event}: the run stops after this update and writes a checkpoint if all its processes still run; "
        "again stops it at once\n"
    )


def test_other_ranks_announce_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGUSR1)
    assert stop.received == "SIGUSR1"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_every_stop_signal_is_recorded_and_its_handler_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        signal.raise_signal(number)
    assert stop.received == number.name
    assert signal.getsignal(number) == before


def test_a_hangup_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


#: A launcher in two processes, as deepspeed's, and a rank that says when it is asked to stop.
RANK = """
import os, time
from dstransformer.distributed.supervision.stop_signals import StopRequest, stop_if_launcher_dies
with StopRequest(announce=True) as stop, stop_if_launcher_dies(os.environ, stop, interval=0.05):
    print(os.getppid(), flush=True)
    while stop.received is None:
        time.sleep(0.05)
    time.sleep(0.5)  # nothing more is printed
print("stopped by", stop.received, flush=True)
"""
NODE = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
CALLED = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', *sys.argv[1:]]))"


def test_a_rank_stops_when_the_process_above_its_launcher_is_killed() -> None:
    command = [sys.executable, "-c", CALLED, NODE, RANK]
    environment = {**os.environ, "CROSS_RANK": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        node = program.stdout.readline().strip()
        program.send_signal(signal.SIGKILL)
        assert program.stdout.readline() == "stopped by the end of the launcher\n"
        assert program.stderr.read() == (
            f"dst: the launcher (process {node} or {program.pid}) was killed: the run stops after this update and "
            "writes a checkpoint; again stops it at once\n"
        )


def test_a_run_that_is_stopping_is_not_asked_again() -> None:
    stop = StopRequest()
    stop.received = "SIGUSR1"
    watch_launcher([-1, -1], stop, threading.Event(), 0.0)
    with pytest.raises(Stopped), stopped_by_signals():
        watch_launcher([-1, -1], StopRequest(), threading.Event(), 0.0)


def test_without_a_launcher_nobody_is_watched() -> None:
    assert launcher_processes({}) == []
    assert launcher_processes({"TORCHELASTIC_RUN_ID": "none"}) == [os.getppid()]
