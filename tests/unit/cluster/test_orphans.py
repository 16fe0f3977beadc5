from __future__ import annotations

import os
import signal
import subprocess
import sys

from dstransformer.cluster.orphans import launchers

#: A launcher in two processes, as deepspeed's; the rank prints a line, and another when it is asked to stop.
RANK = """
import os, signal, sys, time
from dstransformer.cluster.orphans import stopping_with_launcher
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
with stopping_with_launcher(os.environ, interval=0.05):
    print("running", flush=True)
    while not stopped:
        time.sleep(0.05)
print("stopped", flush=True)
"""
NODE = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
CALLED = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', *sys.argv[1:]]))"


def test_a_rank_stops_when_the_process_above_its_launcher_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CALLED, NODE, RANK],
        env={**os.environ, "CROSS_RANK": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        program.send_signal(signal.SIGKILL)
        assert program.stdout.readline() == "stopped\n"


def test_without_a_launcher_nobody_is_watched() -> None:
    assert launchers({}) == []
    assert launchers({"TORCHELASTIC_RUN_ID": "none"}) == [os.getppid()]
