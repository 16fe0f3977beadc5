"""A rank that hangs, is stopped or dies ends the job, and the message names it and says where each rank was."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from support.forks import Fork
from support.launching import environment, finish, forked, free_port
from support.ranks import srun
from support.runs import TINY, latest_state, losses

from dstransformer.cluster.watchdog import UPDATE, Place, Watchdog, _Seen

WATCHED = ["training.hang_seconds=6", "training.max_updates=100000", "checkpoint.every_updates=20"]


def train_arguments(corpus: Path, run: Path) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", "zero1", "fp32"]
    return [*options, "--set", *TINY, *WATCHED]


def wait_for_update(run: Path, update: int, process: Fork) -> None:
    while not ((run / "metrics.jsonl").exists() and len(losses(run)) >= update):
        assert process.poll() is None
        time.sleep(0.05)


def error_of(errors: str) -> str:
    (line,) = (line for line in errors.splitlines() if line.startswith("dst: error:"))
    return line


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [1, 0])
def test_a_stopped_rank_is_named(toy_corpus: Path, tmp_path: Path, stopped: int) -> None:
    run = tmp_path / "run"
    with srun(*[train_arguments(toy_corpus, run)] * 2) as ranks:
        wait_for_update(run, 25, ranks[0])
        ranks[stopped].send_signal(signal.SIGSTOP)
        _, errors = finish(ranks[1 - stopped])
        ranks[stopped].kill()
    assert ranks[1 - stopped].returncode == 1, errors
    line = error_of(errors)
    if stopped:
        assert re.search(r"rank 1 on \S+ has not answered for 6 s; ranks? 0.*: update \d+, update", line)
    else:
        assert re.search(r"rank 0 (on \S+ has not answered for 6 s|does not answer)", line)
    assert "Traceback" not in errors
    stacks = (run / "logs" / f"rank-{1 - stopped:05d}.log").read_text()
    assert "training/trainer.py" in stacks, "the main thread's stack"
    assert latest_state(run)["step"] >= 20, "the last complete checkpoint stays"


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_all_stacks_are_written(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    names = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "127.0.0.1"}
    names["MASTER_PORT"] = str(free_port())
    program = [str(Path(__file__).with_name("hanging_rank.py")), *train_arguments(toy_corpus, run)]

    def variables(rank: int) -> dict[str, str]:
        return environment({**names, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})

    with forked(program, variables(0)) as first, forked(program, variables(1)) as second:
        outputs = [finish(process, first, second) for process in (first, second)]
    assert [first.returncode, second.returncode] == [1, 1], outputs
    line = error_of(outputs[0][1])
    assert re.search(r"rank 1 on \S+ has been in update \d+ for more than 6 s \(training.hang_seconds\)", line)
    assert "rank 0: update 5, update" in line
    for rank, where in ((0, "in _compute"), (1, "in hang")):
        assert where in (run / "logs" / f"rank-{rank:05d}.log").read_text()
    assert "dst: error" not in outputs[1][1], "one message is enough"


@pytest.mark.slow
def test_a_killed_rank_is_named(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with srun(*[train_arguments(toy_corpus, run)] * 2) as ranks:
        wait_for_update(run, 5, ranks[0])
        ranks[1].kill()
        _, errors = finish(ranks[0])
    assert ranks[0].returncode == 1, errors
    assert re.search(r"rank 1 on \S+ has died or stopped; .*another process of the run has ended", error_of(errors))


class Shelf(dict[str, bytes]):
    """A store in memory."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def test_a_long_validation_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watchdog = Watchdog(Shelf(), 0, 3, 30.0, tmp_path / "log")

    def seen(phase: str, *, moved: float, heard: float = 0.0, update: int = 7) -> _Seen:
        return _Seen(Place("node", update, phase, 9), 1, now - heard, now - moved)

    assert watchdog._judge({0: seen("validation", moved=9999.0), 1: seen(UPDATE, moved=29.0)}) is None
    stuck = watchdog._judge({0: seen("x", moved=9.0), 1: seen(UPDATE, moved=31.0)})
    assert stuck is not None
    assert "rank 1 on node has been in update 7" in stuck
    late = watchdog._judge({0: seen(UPDATE, moved=31.0), 1: seen(UPDATE, moved=29.0, update=6)})
    assert late is not None
    assert "rank 1 on node has been in update 6" in late, "heard of later, but behind"
    silent = watchdog._judge({0: seen(UPDATE, moved=1.0), 2: seen("validation", moved=1.0, heard=31.0)})
    assert silent == "rank 2 on node has not answered for 30 s; rank 0: update 7, update; rank 2: update 7, validation"
