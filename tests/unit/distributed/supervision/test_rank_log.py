from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist  # noqa: F401 - a process that trains has imported it

from dstransformer.distributed.launcher import Processes, launcher_name
from dstransformer.distributed.supervision import rank_log
from dstransformer.distributed.supervision.failure_detection import Limits, Verdict
from dstransformer.distributed.supervision.heartbeat import HeartbeatMonitor
from dstransformer.distributed.supervision.rank_log import (
    END_NAME,
    LOGS,
    RankLog,
    RankProcess,
    read_end,
    read_start,
    record_collectives,
    record_start,
)
from dstransformer.errors import ConfigError, DataError, DivergedError, DstError, PeerError, StorageError

LIMITS = Limits(update=30.0, phase=300.0, silence=20.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / LOGS).mkdir()
    return tmp_path


def test_a_log_holds_start_phases_warnings_and_the_end(run: Path) -> None:
    log = RankLog(Processes(2, 0, 4), {"TORCHELASTIC_RUN_ID": "x"}).__enter__()
    log.enter(0, "set-up")
    logging.getLogger("dstransformer.somewhere").warning("the disk is slow")
    log.open(run)
    for update in range(1, 9):
        log.enter(update, "update")
    log.enter(8, "validation")
    log.__exit__(DstError, DstError("rank 1 is gone"), None)
    lines = (run / LOGS / "rank-00002.log").read_text().splitlines()
    assert f"process {os.getpid()}, dstransformer " in lines[0]
    assert lines[0].endswith("started by torchrun")
    assert [line.partition(",")[2].partition(" ")[2] for line in lines[1:]] == [
        "INFO update 0: set-up", "WARNING the disk is slow", "INFO update 1: update", "INFO update 8: validation",
        "ERROR ended: rank 1 is gone",
    ]  # fmt: skip
    logging.getLogger("dstransformer.somewhere").warning("afterwards")
    assert "afterwards" not in (run / LOGS / "rank-00002.log").read_text()


def test_a_log_has_a_largest_size(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_log, "MAX_BYTES", 2000)
    with RankLog(Processes(0, 0, 1)) as log:
        log.open(run)
        for update in range(500):
            log.enter(update, f"phase {update}")
    assert {path.name for path in (run / LOGS).iterdir()} == {"rank-00000.log", "rank-00000.log.1"}
    assert all(path.stat().st_size <= 2000 for path in (run / LOGS).iterdir())
    assert (run / LOGS / "rank-00000.log").read_text().endswith("ended\n")


def test_a_folder_that_cannot_be_written_disturbs_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with RankLog(Processes(0, 0, 1)) as log:
        assert log.record_end("finished", "finished", 0) is None, "no run folder yet"
        log.open(tmp_path / "gone")
        log.enter(1, "update")
        assert log.record_end("finished", "finished", 0) is None
    assert capfd.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


def test_a_process_leaves_the_verdict_its_stacks_and_its_collectives(run: Path) -> None:
    with RankLog(Processes(3, 0, 4)) as log:
        log.dump_stacks("nowhere to write to yet")
        log.open(run)
        log.dump_stacks("rank 1 hangs")
        said = (run / LOGS / "rank-00003.log").read_text()
    assert "ended by the watchdog: rank 1 hangs\n" in said
    assert "test_a_process_leaves" in said
    assert (run / LOGS / "trace_rank_3").exists()


def test_values_of_the_flight_recorder_that_the_user_has_set_stay(tmp_path: Path) -> None:
    default = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_rank_"}
    for given in ({}, {"TORCH_FR_BUFFER_SIZE": "7"}, {"TORCH_FR_DUMP_TEMP_FILE": "/mine"}):
        environment = dict(given)
        record_collectives(environment, tmp_path)
        assert environment == default | given
    earlier = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine"}
    environment = dict(earlier)
    record_collectives(environment, tmp_path)
    assert environment == earlier, "PyTorch would prefer the new names"


@pytest.mark.parametrize(("variables", "name"), [
    ({"TORCHELASTIC_RUN_ID": "1", "RANK": "0"}, "torchrun"), ({"RANK": "0", "CROSS_RANK": "0"}, "deepspeed"),
    ({"SLURM_STEP_NUM_TASKS": "2"}, "srun"), ({"WORLD_SIZE": "2", "RANK": "0"}, "another launcher"),
    ({}, "no launcher"),
])  # fmt: skip
def test_launchers_are_told_apart(variables: dict[str, str], name: str) -> None:
    assert launcher_name(variables) == name


def shared(error: DstError) -> DstError:
    error.shared = True
    return error


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


#: Rank, its error, and the cause, status and ranks that it records; None if it records nothing.
ERRORS = [
    (0, ConfigError("wrong"), ("error", 2, [0])),
    (0, shared(ConfigError("wrong")), ("error", 2, [])),
    (1, shared(ConfigError("wrong")), None),
    (0, DivergedError("NaN"), ("error", 1, [])),
    (0, KeyboardInterrupt(), ("interrupted", 130, [])),
    (1, KeyboardInterrupt(), None),
    (0, PeerError("another process has ended"), ("connection", 1, [0])),
    (1, PeerError("another process has ended"), None),
    (1, ConfigError("wrong"), ("error", 2, [1])),
    (1, ZeroDivisionError("x"), ("bug", 1, [1])),
    (1, torch.OutOfMemoryError("CUDA out of memory."), ("memory", 1, [1])),
    (0, MemoryError(), ("memory", 1, [0])),
    (0, shared(DstError("rank 1 on b: OutOfMemoryError: no")), ("memory", 1, [])),
    (0, OSError(errno.EROFS, "Read-only file system"), ("disk", 1, [0])),
    (0, StorageError("cannot write x: permission denied"), ("disk", 1, [0])),
    (1, raised_from(StorageError("cannot write x"), OSError(errno.ENOSPC, "No space")), ("full disk", 1, [1])),
]


@pytest.mark.parametrize(("rank", "error", "recorded"), ERRORS)
def test_the_process_that_knows_records_why_the_run_ended(
    run: Path, rank: int, error: BaseException, recorded: tuple[str, int, list[int]] | None
) -> None:
    log = RankLog(Processes(rank, rank, 2))
    log.open(run)
    log.enter(7, "validation")
    log.record_error(error)
    end = read_end(run)
    assert (end and (end.cause, end.status, end.ranks)) == recorded
    if end is not None and not isinstance(error, KeyboardInterrupt):
        assert str(error) in end.message
        assert end.phase == "update 7, validation"
    assert [path.name for path in (run / LOGS).iterdir()] == ["rank-0000" + f"{rank}.log"]


def test_the_first_record_of_an_end_stays_until_the_next_start(run: Path) -> None:
    logs = [RankLog(Processes(rank, rank, 2)) for rank in range(2)]
    for log in logs:
        log.open(run)
    assert logs[1].record_end("bug", "first", 1, [1])
    assert logs[0].record_end("failed", "rank 1 ended with an error", 1, [1]) is False
    end = read_end(run)
    assert end is not None
    assert end.message == "first"
    shutil.rmtree(run / LOGS)
    record_start(run, [RankProcess(host="a", process=7)] * 2, "srun")
    start = read_start(run)
    assert start is not None
    assert (start.launcher, [each.process for each in start.ranks], read_end(run)) == ("srun", [7, 7], None)


@pytest.mark.parametrize("text", ["", "1", "{}", '{"status": 1, "cause": "x"}', "\0" * 90])
def test_a_damaged_end_is_named(run: Path, text: str) -> None:
    (run / END_NAME).write_text(text)
    with pytest.raises(DataError, match=r"end\.json is damaged"):
        read_end(run)


@pytest.mark.parametrize(("rank", "said"), [(0, True), (1, True), (2, False)])
def test_a_verdict_that_cannot_be_written_is_printed_by_the_first_ranks(
    run: Path, capfd: pytest.CaptureFixture[str], rank: int, said: bool
) -> None:
    log = RankLog(Processes(rank, rank, 3))
    log.open(run)
    shutil.rmtree(run)
    monitor = HeartbeatMonitor(Processes(rank, rank, 3), LIMITS, log)
    monitor._print_verdict(Verdict("hung", [1], "rank 1 on node hangs"))
    assert ("dst: error: rank 1 on node hangs. Stacks" in capfd.readouterr().err) == said
