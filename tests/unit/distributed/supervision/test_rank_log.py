from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch.distributed as dist  # noqa: F401 - a process that trains has imported it

from dstransformer.distributed.launcher import Processes, launcher_name
from dstransformer.distributed.supervision import rank_log
from dstransformer.distributed.supervision.rank_log import STATUS_NAME, ExitStatus, RankLog, record_collectives
from dstransformer.errors import ConfigError, DstError


def test_a_log_holds_start_phases_warnings_and_the_end(tmp_path: Path) -> None:
    log = RankLog(Processes(2, 0, 4), {"TORCHELASTIC_RUN_ID": "x"}).__enter__()
    log.enter(0, "set-up")
    logging.getLogger("dstransformer.somewhere").warning("the disk is slow")
    log.open(tmp_path)
    for update in range(1, 9):
        log.enter(update, "update")
    log.enter(8, "validation")
    log.__exit__(DstError, DstError("rank 1 is gone"), None)
    lines = (tmp_path / "rank-00002.log").read_text().splitlines()
    assert f"process {os.getpid()}, dstransformer " in lines[0]
    assert lines[0].endswith("started by torchrun")
    assert [line.partition(",")[2].partition(" ")[2] for line in lines[1:]] == [
        "INFO update 0: set-up", "WARNING the disk is slow", "INFO update 1: update", "INFO update 8: validation",
        "ERROR ended: rank 1 is gone",
    ]  # fmt: skip
    logging.getLogger("dstransformer.somewhere").warning("afterwards")
    assert "afterwards" not in (tmp_path / "rank-00002.log").read_text()


def test_a_log_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_log, "MAX_BYTES", 2000)
    with RankLog(Processes(0, 0, 1)) as log:
        log.open(tmp_path)
        for update in range(500):
            log.enter(update, f"phase {update}")
    assert {path.name for path in tmp_path.iterdir()} == {"rank-00000.log", "rank-00000.log.1"}
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    assert (tmp_path / "rank-00000.log").read_text().endswith("ended\n")


def test_a_log_that_cannot_be_written_disturbs_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with RankLog(Processes(0, 0, 1)) as log:
        log.open(tmp_path / "gone")
        log.enter(1, "update")
    assert capfd.readouterr().err == ""


def test_a_process_leaves_the_verdict_its_stacks_and_its_collectives(tmp_path: Path) -> None:
    with RankLog(Processes(3, 0, 4)) as log:
        log.dump_stacks("nowhere to write to yet")
        log.open(tmp_path)
        log.dump_stacks("rank 1 hangs")
        said = (tmp_path / "rank-00003.log").read_text()
    assert "ended by the watchdog: rank 1 hangs\n" in said
    assert "test_a_process_leaves" in said
    assert (tmp_path / "trace_rank_3").exists()


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


def test_rank_0_records_the_exit_status_once_the_run_folder_is_there(tmp_path: Path) -> None:
    def recorded() -> str:
        return (tmp_path / STATUS_NAME).read_text().split()[0]

    status, other = ExitStatus(0), ExitStatus(1)
    status.record(0)
    for one in (status, other):
        one.open(tmp_path)
    other.record(1)
    assert not list(tmp_path.iterdir())
    status.record(0)
    assert recorded() == "0"
    for error, expected in ((ConfigError("wrong"), "2"), (KeyboardInterrupt(), "130"), (ValueError(), "1")):
        status.record_error(error)
        assert recorded() == expected
    status.open(tmp_path / "gone")
    status.record(0)
