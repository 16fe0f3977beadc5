from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from dstransformer.distributed.supervision.orphans import launchers, watch
from dstransformer.terminal.command import Stopped, stopped_by_signals

#: A launcher in two processes, as deepspeed's, and a rank that says when it is asked to stop.
RANK = """
import os, signal, threading
from dstransformer.distributed.supervision.orphans import stopping_with_launcher
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
with stopping_with_launcher(os.environ, lambda: False, interval=0.05):
    print("running", flush=True)
    while not stopped.wait(0.05):
        pass
print("stopped", flush=True)
"""
NODE = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
CALLED = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', *sys.argv[1:]]))"


def test_a_rank_stops_when_the_process_above_its_launcher_is_killed() -> None:
    command = [sys.executable, "-c", CALLED, NODE, RANK]
    environment = {**os.environ, "CROSS_RANK": "0"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        program.send_signal(signal.SIGKILL)
        assert program.stdout.readline() == "stopped\n"


def test_a_run_that_is_stopping_is_not_asked_again() -> None:
    watch([-1, -1], lambda: True, threading.Event(), 0.0)
    with pytest.raises(Stopped), stopped_by_signals():
        watch([-1, -1], lambda: False, threading.Event(), 0.0)


def test_without_a_launcher_nobody_is_watched() -> None:
    assert launchers({}) == []
    assert launchers({"TORCHELASTIC_RUN_ID": "none"}) == [os.getppid()]
