from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision import rank_log
from dstransformer.distributed.supervision.past_run import read_exit_status, read_past_run
from dstransformer.distributed.supervision.rank_log import LOGS, STATUS_NAME, ExitStatus, RankLog
from dstransformer.errors import DataError, DstError


def log_rank(run: Path, rank: int = 0, size: int = 1, error: Exception | None = None) -> None:
    (run / LOGS).mkdir(exist_ok=True)
    log = RankLog(Processes(rank, rank, size), {}).__enter__()
    log.open(run / LOGS)
    log.enter(7, "validation")
    logging.getLogger("dstransformer.somewhere").warning("the disk is slow")
    log.__exit__(None if error is None else type(error), error, None)


def test_it_reads_what_the_logs_say(tmp_path: Path) -> None:
    log_rank(tmp_path, error=DstError("training diverged"))
    status = ExitStatus(0)
    status.open(tmp_path)
    status.record_error(DstError("training diverged"))
    past = read_past_run(tmp_path)
    record = past.ranks[0]
    assert (past.status, past.verdict, past.damage) == (1, "", [])
    assert (record.world_size, record.process, record.launcher) == (1, os.getpid(), "no launcher")
    assert (record.update, record.phase, record.is_over, record.error) == (7, "validation", True, "training diverged")
    assert record.warnings == ["the disk is slow"]
    assert abs(record.started - time.time()) < 3600


def test_an_error_of_python_is_the_line_below_its_traceback(tmp_path: Path) -> None:
    try:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 2.00 GiB")
    except RuntimeError as error:
        log_rank(tmp_path, error=error)
    assert read_past_run(tmp_path).ranks[0].error == "RuntimeError: CUDA out of memory."


def test_only_the_last_start_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        log_rank(tmp_path, rank, 4, DstError("the first"))
    (tmp_path / STATUS_NAME).write_text(f"1 {time.time() - 100:.3f}\n")
    for rank in range(2):
        log_rank(tmp_path, rank, 2)
    past = read_past_run(tmp_path)
    assert (sorted(past.ranks), past.status) == ([0, 1], None)
    assert [record.error for record in past.ranks.values()] == ["", ""]
    monkeypatch.setattr(rank_log, "MAX_BYTES", 300)
    log_rank(tmp_path, 0, 2)  # the log is turned over within a start
    assert (tmp_path / LOGS / "rank-00000.log.1").exists()
    assert read_past_run(tmp_path).ranks[0].is_over


@pytest.mark.parametrize("text", ["", "1", "1 2", "x 12.0\n", "1 12.0\n1 13.0\n", "1 1e9\n", "\0" * 90])
def test_a_damaged_exit_status_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / STATUS_NAME).write_text(text)
    with pytest.raises(DataError, match=r"exit-status is damaged"):
        read_exit_status(tmp_path / STATUS_NAME)
    assert "exit-status is damaged" in read_past_run(tmp_path).damage[0]


def test_a_folder_without_logs_says_nothing(tmp_path: Path) -> None:
    past = read_past_run(tmp_path)
    assert (past.ranks, past.verdict, past.status, past.damage) == ({}, "", None, [])
