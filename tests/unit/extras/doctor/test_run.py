from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision import rank_log
from dstransformer.distributed.supervision.rank_log import LOGS, End, RankLog, RankProcess, Start, record_start
from dstransformer.errors import ConfigError
from dstransformer.extras.doctor import run as doctor_run
from dstransformer.extras.doctor.run import RunFolder, find_cause, killed_for_memory, read_run
from dstransformer.io.files import RESUME_ADVICE


def past(cause: str = "", message: str = "", ranks: list[int] | None = None, size: int = 1) -> RunFolder:
    """A run that has recorded an end, or none."""
    processes = [RankProcess(host=platform.node(), process=100 + rank) for rank in range(size)]
    start = Start(version="0.1.0", launcher="srun", time=1e9, ranks=processes)
    known: Any = {"status": 1, "cause": cause, "message": message, "ranks": ranks or [], "phase": "", "time": 1e9}
    logs = {rank: ["an earlier line", f"line of {rank}"] for rank in range(size)}
    written = {rank: 1e9 - rank for rank in range(size)}
    end = End.model_validate(known) if cause else None
    return RunFolder(Path("r"), None, start, end, logs, written)


FULL = f"cannot write /r: No space left on device; {RESUME_ADVICE}"
HANG = "rank 1 has been in update 3 for more than 600 s (training.hang_seconds); …"
SILENCE = "rank 1 on b has not answered for 60 s (training.silence_seconds); …"


@pytest.mark.parametrize(("run", "text", "advice", "is_fault"), [
    (past("finished"), "finished", "", False),
    (past("stopped", "stopped by SIGTERM"), "stopped by SIGTERM", "run the same command again", False),
    (past("interrupted"), "second Ctrl-C", "run the same", False),
    (past("full disk", FULL), FULL, "", True),
    (past("full disk", "OSError: No space"), "No space", "make room", True),
    (past("disk", "Input/output error"), "Input", "look at that disk", True),
    (past("memory", "CUDA out of memory."), "CUDA", "zero2", True),
    (past("bug", "ZeroDivisionError: x"), "ZeroDivision", "please report", True),
    (past("error", "training diverged", size=2), "training diverged", "", True),
    (past("error", "wrong", [1], size=2), f"rank 1 on {platform.node()}: wrong", "", True),
    (past("hung", HANG, [1], 2), HANG, "the stacks in logs/rank-*.log", True),
    (past("silent", SILENCE, [1], 2), SILENCE, "the network to it", True),
    (past("connection", "a connection broke", [0], 2), "a connection broke", "NCCL_DEBUG", True),
    (past("died", "rank 1 has died", [1], 2), "rank 1 has died", "dmesg", True),
    (past(), "its process ended without a word", "dmesg", True),
    (past(size=2), f"the log of rank 1 on {platform.node()} stops first and ends with: line of 1", "dmesg", True),
    (RunFolder(Path("r")), "nothing says when or how it ended", "run the command again", True),
    (replace(past(), damage=["r/end.json is damaged"]), "nothing says", "launcher", True),
])  # fmt: skip
def test_each_end_has_its_cause_and_advice(run: RunFolder, text: str, advice: str, is_fault: bool) -> None:
    cause = find_cause(run)
    assert text in cause.text
    assert advice in cause.advice if advice else not cause.advice
    assert (cause.level == "FAULT") == is_fault


def test_a_process_that_the_kernel_killed_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,2,-;Memory cgroup out of memory: Killed process 101 (python)\n6,1,3,-;Killed process 7 (x)\n")
    assert killed_for_memory(log) == {7, 101}
    assert killed_for_memory(tmp_path / "none") == set()
    monkeypatch.setattr(doctor_run, "killed_for_memory", lambda: killed_for_memory(log))
    for run in (past("died", "rank 1 has died", [1], 2), past(size=2)):
        assert find_cause(run).advice.startswith(
            "the kernel killed it because this machine's memory ran out: let batch.micro_batches=auto"
        )
    assert "dmesg" in find_cause(past("died", "rank 0 has died", [0], 2)).advice


def log_rank(run: Path, text: str, rank: int = 0, size: int = 1) -> None:
    with RankLog(Processes(rank, rank, size), {}) as log:
        log.open(run)
        log.enter(7, text)
        log.note(ConfigError(text))


def test_only_the_log_of_the_last_start_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = RankProcess(host=platform.node(), process=os.getpid())
    record_start(tmp_path, [process] * 2, "no launcher")
    for text in ("the first", "the second"):
        for rank in range(2):
            log_rank(tmp_path, text, rank, 2)
    found = read_run(tmp_path)
    assert found.warnings == ["the second"] * 2
    assert found.logs[1][-1].endswith("INFO ended")
    assert [text for text in found.damage if "config.yaml" not in text] == []
    monkeypatch.setattr(rank_log, "MAX_BYTES", 300)
    log_rank(tmp_path, "the third", 1, 2)  # the log is turned over within a start
    assert (tmp_path / LOGS / "rank-00001.log.1").exists()
    assert read_run(tmp_path).warnings[-1] == "the third"
