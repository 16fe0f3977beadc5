from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.processes.launching import wait_until

from dstransformer.extras.child import run_dst

#: Runs a child that does nothing but what it first asks of the kernel.
WAITING = """
import sys
from pathlib import Path
from dstransformer.extras import child
before, found, _ = child._MAIN.partition("runpy.run_module(")
assert found
child._MAIN = before + f"import time; open({sys.argv[2]!r}, 'w').close(); time.sleep(600)"
print(child.run_dst([], Path(sys.argv[1]), {}), flush=True)
"""


def test_output_and_status_of_a_command_that_succeeds(tmp_path: Path) -> None:
    ended = run_dst(["presets"], tmp_path / "log", {})
    assert (ended.status, ended.signal) == (0, None)
    assert "base" in ended.stdout
    assert ended.seconds > 0


def test_a_failure_is_told_by_its_last_error_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("dst: error: of an earlier run\n")
    ended = run_dst(["train", "nothing", "--corpus", "c", "--run", str(tmp_path / "run")], log, {})
    assert ended.status == 2
    assert ended.error.startswith("unknown preset 'nothing'")
    assert log.read_text().startswith("dst: error: of an earlier run\n")


@pytest.mark.slow
def test_a_child_does_not_see_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # without RANK, training would refuse it
    ended = run_dst(
        ["train", "toy", "--corpus", str(tmp_path / "none"), "--run", str(tmp_path / "run")], tmp_path / "log", {}
    )
    assert ended.status == 2
    assert "WORLD_SIZE" not in ended.error
    ended = run_dst(["train", "toy", "--corpus", "c", "--run", "r"], tmp_path / "log", {"WORLD_SIZE": "2"})
    assert "WORLD_SIZE" in ended.error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(tmp_path / "log"), str(tmp_path / "ready")],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    wait_until(lambda: (tmp_path / "ready").exists() or parent.poll() is not None)
    (child,) = psutil.Process(parent.pid).children()
    parent.send_signal(number)
    printed, _ = parent.communicate()
    assert not psutil.wait_procs([child], timeout=60)[1]
    if number == signal.SIGTERM:
        assert f"signal={int(signal.SIGTERM)}" in printed
