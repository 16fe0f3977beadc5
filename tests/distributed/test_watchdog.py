"""A rank that hangs, is stopped or dies ends the job. One line names it and says where each rank was."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.processes.forks import Fork, environment
from support.processes.launching import forked, free_port, run_command, wait_until
from support.processes.ranks import finish_all, srun
from support.services.mlflow_runs import send_rest, tracked_run
from support.training.runs import TINY, latest_state, losses

from dstransformer.io.products import MARKER, RUN_LOCK

PROGRAM = str(Path(__file__).with_name("faulty_rank.py"))

#: Limits far beyond what a busy machine takes between two signs of life, and short enough for a test.
WATCHED = ["training.hang_seconds=15", "training.wait_seconds=600", "training.silence_seconds=10"]

SCHEDULE = ["training.max_updates=12", "validation.every=4", "checkpoint.every_updates=4"]


def train_arguments(corpus: Path, run: Path, *overrides: str) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", "zero1", "fp32", "--set", *TINY]
    return [*options, *WATCHED, *SCHEDULE, *overrides]


def fault(phase: str, ranks: Sequence[int], how: str, update: int = 0, after: Path | None = None) -> dict[str, str]:
    """The variable that makes ``faulty_rank.py`` fail."""
    path = None if after is None else str(after)
    return {"DST_FAULT": json.dumps({"phase": phase, "ranks": ranks, "how": how, "update": update, "after": path})}


@contextmanager
def faulty(count: int, variables: dict[str, str], arguments: Sequence[str]) -> Iterator[list[Fork]]:
    """Ranks as ``srun`` starts them, some of which fail."""
    shared = {"SLURM_NTASKS": str(count), "SLURM_STEP_NUM_TASKS": str(count), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), **variables}
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                forked([PROGRAM, *arguments], environment({**shared, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}))
            )
            for rank in map(str, range(count))
        ]


def error_of(*outputs: tuple[str, str]) -> str:
    """The one line that says what happened."""
    printed = "\n".join(errors for _, errors in outputs)
    assert "Traceback" not in printed, printed
    lines = [line for line in printed.splitlines() if line.startswith("dst") and "error:" in line]
    assert len(lines) == 1, printed
    return lines[0]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "phase", "update", "ranks", "how"), [
    (2, "update", 11, [0], "SIGSTOP"),
    pytest.param(2, "validation", 8, [0], "SIGKILL", marks=pytest.mark.extended),
    pytest.param(2, "checkpoint", 8, [1], "SIGSTOP", marks=pytest.mark.extended),
    pytest.param(2, "final evaluation of the bundle", 12, [1], "SIGKILL", marks=pytest.mark.extended),
    (2, "the start of DeepSpeed", 0, [1], "SIGKILL"),
    pytest.param(2, "set-up", 0, [0], "SIGSTOP", marks=pytest.mark.extended),
    pytest.param(4, "update", 11, [1, 2], "SIGKILL", marks=pytest.mark.extended),
    pytest.param(4, "update", 11, [0, 1], "SIGKILL", marks=pytest.mark.extended),
])  # fmt: skip
def test_one_line_names_the_ranks_that_are_gone(
    toy_corpus: Path, tmp_path: Path, count: int, phase: str, update: int, ranks: list[int], how: str
) -> None:
    run = tmp_path / "run"
    with faulty(count, fault(phase, ranks, how, update), train_arguments(toy_corpus, run)) as all_ranks:
        living = {rank: process for rank, process in enumerate(all_ranks) if rank not in ranks}
        outputs = finish_all(list(living.values()))
    assert [process.returncode for process in living.values()] == [1] * len(living), outputs
    line = error_of(*outputs)
    if 0 in ranks:
        assert re.search(r"rank 0 (on \S+ )?(has died, or cannot|has not answered|has died or stopped)", line)
    else:
        named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} on "
        assert re.search(rf"error: {named}\S+ (has|have) (died or stopped|not answered)", line)
    if phase == "set-up":
        assert {path.name for path in run.iterdir()} == {RUN_LOCK, MARKER, ".probe"}, "the next command trains in it"
        return
    assert re.search(rf"ranks? [\d, ]+: update ({update - 1}|{update}), \w+", line), line
    assert json.loads((run / "end.json").read_text())["message"] in line
    for rank in living:
        log = (run / "logs" / f"rank-{rank:05d}.log").read_text()
        assert f"rank {rank} of {count} on " in log
        assert "started by srun" in log
        assert "ended by the watchdog: " in log
        assert "training/run.py" in log, "the main thread's stack"
    if update > 8:
        assert int(latest_state(run)["step"]) >= 4, "complete checkpoints stay"


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_the_run_has_failed(toy_corpus: Path, tmp_path: Path, empty_store: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "mlflow.db"
    shutil.copy(empty_store, store)
    arguments = train_arguments(toy_corpus, run, "tracking.enabled=true", f"tracking.uri=sqlite:///{store}")
    with faulty(2, fault("update", [1], "hang", 11), arguments) as ranks:
        outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [1, 1], outputs
    line = error_of(*outputs)
    assert re.search(r"rank 1 on \S+ has been in update 10 for more than 15 s \(training.hang_seconds\)", line)
    assert "rank 0: update 11, update" in line
    for rank, where in ((0, r'training/engine\.py", line \d+ in step'), (1, "in fail")):
        assert re.search(where, (run / "logs" / f"rank-{rank:05d}.log").read_text())
    traced = pickle.loads((run / "logs" / "trace_rank_0").read_bytes())
    assert {entry["timeout_ms"] for entry in traced["entries"]} == {600_000}, "also of the groups of DeepSpeed"
    send_rest(run)
    assert tracked_run(run)[1].info.status == "FAILED"


@pytest.mark.slow
def test_a_job_that_torchrun_starts_again_resumes(toy_corpus: Path, tmp_path: Path) -> None:
    """Its agent keeps the store in which the processes of the first attempt have met, and ends the other rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--", PROGRAM]
    run = tmp_path / "run"
    # The checkpoint of update 4 is complete when the next one begins, at update 8, if not before.
    variables = environment(fault("update", [0], "SIGKILL", 6, after=run / "checkpoints" / "latest"))
    done = run_command([*command, *train_arguments(toy_corpus, run)], env=variables)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("dst: error:"))
    assert re.search(r"rank 0 on \S+ has died", line), line
    assert "started by torchrun" in (run / "logs" / "rank-00001.log").read_text()
    assert re.search(r"resumed at update [48]\b", done.stderr), done.stderr
    assert len(losses(run)) == 12


@pytest.mark.slow
def test_a_suspended_job_goes_on(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    limits = ["training.hang_seconds=15", "training.wait_seconds=15", "training.silence_seconds=8"]
    limits += ["validation.every=0", "checkpoint.every_updates=0"]
    arguments = train_arguments(toy_corpus, run, "training.max_updates=90", *limits)
    with srun(arguments, arguments) as ranks:
        wait_until(lambda: (run / "metrics.jsonl").exists() and len(losses(run)) >= 5, running=ranks)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for rank in ranks:
                rank.send_signal(number)
            time.sleep(20 if number == signal.SIGSTOP else 0)
        outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "update 90: final evaluation of the bundle" in (run / "logs" / "rank-00001.log").read_text()
