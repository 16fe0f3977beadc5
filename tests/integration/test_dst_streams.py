"""``dst`` with unread output, closed streams and full disks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.forks import environment
from support.processes.launching import finish, run_command, wait_until
from support.training.runs import train_options


def unread(*arguments: str) -> subprocess.Popen[str]:
    """Start ``dst`` with a pipe for stdout whose reader has gone, as with ``| head``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dstransformer", *arguments]
    process = subprocess.Popen(command, env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    return process


class TestClosedPipe:
    def test_it_is_not_a_failure(self) -> None:
        process = unread("ds-config", "base")
        assert finish(process)[1] == ""
        assert process.returncode == 0

    def test_a_stopped_run_still_exits_with_its_status(self, toy_corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        endless = ["training.max_updates=100000", "tracking.enabled=false"]
        process = unread(*train_options(toy_corpus, run, *endless), "--json")
        wait_until(lambda: (run / "metrics.jsonl").exists() or process.poll() is not None)
        process.terminate()
        errors = finish(process)[1]
        assert process.returncode == 143, errors
        assert "Traceback" not in errors
        assert "BrokenPipe" not in errors


def test_a_full_stdout_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "dstransformer", "presets"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment(), text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "dst: error: cannot write to stdout: No space left on device\n"


@pytest.mark.parametrize(("command", "errors"), [
    ("presets >&-", "dst: error: cannot write to stdout: it is closed\n"),
    ("ds-config bsae 2>&-", ""),
    ("ds-config base <&- >/dev/null", ""),
    ("--help | head -1 >/dev/null", ""),
])  # fmt: skip
def test_closed_streams(command: str, errors: str) -> None:
    done = run_command(["bash", "-c", f"{sys.executable} -m dstransformer {command}"])
    assert done.stderr == errors
    assert done.stdout == ""
