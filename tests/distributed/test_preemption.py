"""Being told to stop in the middle of a run, going on afterwards, and nodes that share nothing: with real ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.forks import Fork
from support.launching import finish, forked, launcher, started
from support.ranks import finish_all, run_dst_ranks, srun
from support.runs import TINY, latest_state, losses

UPDATES = 80
STOPPED = 143


def train_arguments(corpus: Path, run: Path) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", "zero2", "fp32", "--set", *TINY]
    return [*options, "model.dropout=0.1", f"training.max_updates={UPDATES}"]


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str] | Fork) -> None:
    while not condition():
        assert process.poll() is None, "the run ended before the signal"
        time.sleep(0.02)


def has_logged(run: Path, update: int) -> bool:
    return (run / "metrics.jsonl").exists() and len(losses(run)) >= update


def assert_stopped_whole(run: Path, after: int) -> int:
    """The last update that was logged is the one of the checkpoint; returns its number."""
    step = latest_state(run)["step"]
    assert after < step == len(losses(run)) < UPDATES
    assert not list((run / "checkpoints").glob(".*"))
    return int(step)


@pytest.mark.slow
def test_a_run_that_is_stopped_twice_equals_one_that_never_was(toy_corpus: Path, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "preempted"
    done = run_dst_ranks(2, *train_arguments(toy_corpus, whole))
    assert done.returncode == 0, done.stderr
    arguments = train_arguments(toy_corpus, run)

    # SLURM warns one task while DeepSpeed is still starting: both stop, and say that they have not finished.
    with srun(arguments, arguments) as ranks:
        wait_until((run / "ds_config.json").exists, ranks[0])
        ranks[0].send_signal(signal.SIGUSR1)
        outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [STOPPED, STOPPED], outputs
    stopped = assert_stopped_whole(run, after=0)
    assert f"stopped by SIGUSR1 at step {stopped}; run the same command to resume" in outputs[0][0]

    # The same command goes on; SIGTERM comes in the middle, to the other rank, and the launcher passes the status on.
    with started(launcher(2, "--module", "dstransformer", *arguments)) as program:
        wait_until(lambda: has_logged(run, stopped + 5), program)
        (other,) = (p for p in psutil.Process(program.pid).children(recursive=True) if "--local_rank=1" in p.cmdline())
        other.terminate()
        finish(program)
        assert program.returncode == STOPPED
    assert_stopped_whole(run, after=stopped + 4)

    done = run_dst_ranks(2, *arguments)
    assert done.returncode == 0, done.stderr
    assert len(losses(run)) == UPDATES
    assert losses(run) == losses(whole)


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with forked(["-m", "dstransformer", *train_arguments(toy_corpus, run)]) as program:
        wait_until(lambda: has_logged(run, 5), program)
        program.send_signal(signal.SIGINT)
        output, _ = finish(program)
    assert program.returncode == STOPPED
    assert f"stopped by SIGINT at step {assert_stopped_whole(run, after=4)}" in output


@pytest.mark.slow
def test_a_run_outlives_who_watches_it(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "dstransformer", *train_arguments(toy_corpus, run)]
    with started(command, stderr=subprocess.PIPE) as program:
        assert program.stderr is not None
        assert any(line.startswith("update 1/") for line in program.stderr)
        program.stderr.close()
        finish(program)
        assert program.returncode == 0
    assert len(losses(run)) == UPDATES


@pytest.mark.slow
def test_nodes_that_do_not_share_the_run_folder_are_told_so(toy_corpus: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "disk-of-node-0" / "run", tmp_path / "disk-of-node-1" / "run"]
    with srun(*(train_arguments(toy_corpus, folder) for folder in folders)) as ranks:
        outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [2, 2], outputs
    assert "put --run on a file system that all nodes share" in outputs[0][1]
    assert "error" not in outputs[1][1], "every rank meets it, the first one says it"
    assert not (folders[0] / "metrics.jsonl").exists()
    assert not folders[1].exists()
