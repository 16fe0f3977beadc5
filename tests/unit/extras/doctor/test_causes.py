from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from dstransformer.distributed.supervision.past_run import PastRun, RankRecord
from dstransformer.extras.doctor import causes
from dstransformer.extras.doctor.causes import find_cause, killed_for_memory


def rank(number: int = 0, size: int = 1, **values: Any) -> RankRecord:
    return RankRecord(number, size, platform.node(), 100 + number, "0.1.0", "srun", 1e9, 1e9 + number, **values)


def past(*ranks: RankRecord, status: int | None = None, verdict: str = "") -> PastRun:
    return PastRun({each.rank: each for each in ranks}, verdict, status, 0.0, [])


FULL = "cannot write /r: No space left on device"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory."
HANG = "rank 1 has been in update 3 for more than 600 s (training.hang_seconds); …"
SILENCE = "rank 1 on b has not answered for 60 s (training.silence_seconds); …"
LAUNCHER = "the launcher (process 12) was killed: the run stops"


@pytest.mark.parametrize(
    ("run", "text", "advice", "is_fault"),
    [
        (past(rank(is_over=True), status=0), "finished", "", False),
        (past(rank(is_over=True), status=143), "stopped by a signal", "run the same command again", False),
        (past(rank(is_over=True, warnings=[LAUNCHER]), status=143), f"stopped: {LAUNCHER}", "run the same", False),
        (past(rank(is_over=True, error="KeyboardInterrupt"), status=130), "second Ctrl-C", "run the same", False),
        (past(rank(is_over=True, error=FULL), status=1), "No space", "make room", True),
        (past(rank(is_over=True, error=MEMORY), status=1), "CUDA", "zero2", True),
        (past(rank(is_over=True, error="ZeroDivisionError: x"), status=1), "ZeroDivision", "please report", True),
        (past(status=2), "ended with status 2; no log says why", "what the launcher printed", True),
        (past(), "nothing says when or how it ended", "run the command again", True),
        (past(rank(), rank(1, 2)), "2 of its 2 processes ended without a word, at the start", "dmesg", True),
        (
            past(rank(is_over=True), status=1, verdict=HANG),
            "rank 1 has been in update 3", "the stacks in logs/rank-*.log", True,
        ),
        (
            past(rank(is_over=True), status=1, verdict=SILENCE),
            "has not answered", "the network to it", True,
        ),
    ],
)  # fmt: skip
def test_each_end_has_its_cause_and_advice(run: PastRun, text: str, advice: str, is_fault: bool) -> None:
    cause = find_cause(run)
    assert text in cause.text
    assert advice in cause.advice
    assert cause.is_fault == is_fault


def test_the_first_error_that_is_no_consequence_is_the_cause() -> None:
    lost = "another process of the run has ended or does not respond; see its own message (Connection closed)"
    ranks = [
        rank(0, 3, is_over=True, error=lost),
        rank(2, 3, is_over=True, error="second"),
        rank(1, 3, is_over=True, error="first"),
    ]
    cause = find_cause(past(*ranks, status=1, verdict="rank 1 ended with an error, see there; …"))
    assert cause.text == f"rank 1 on {platform.node()}: first"


def test_a_process_that_the_kernel_killed_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,2,-;Memory cgroup out of memory: Killed process 101 (python)\n6,1,3,-;Killed process 7 (x)\n")
    assert killed_for_memory(log) == {7, 101}
    assert killed_for_memory(tmp_path / "none") == set()
    monkeypatch.setattr(causes, "killed_for_memory", lambda: killed_for_memory(log))
    verdict = "rank 1 on b has died or stopped; rank 0: update 4, update"
    cause = find_cause(past(rank(0, 2, is_over=True), rank(1, 2), status=1, verdict=verdict))
    assert cause.text == verdict
    assert cause.advice.startswith("the kernel killed it because this machine's memory ran out: use more processes")
