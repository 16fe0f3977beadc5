"""The batch script on a real SLURM cluster of two nodes: a warning before the time limit, requeueing, a lost node."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters.slurm import Slurm, slurm_cluster
from support.processes.forks import REPOSITORY
from support.processes.launching import free_port, wait_until
from support.training.runs import TINY, latest_state, losses

UPDATES = 80


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    with slurm_cluster(tmp_path / "slurm") as cluster:
        yield cluster


def submit(slurm: Slurm, log: Path, *train: str, **variables: str) -> str:
    """Submit launch/slurm.sbatch with arguments of ``dst train``, on up to two nodes, a task each; return the job."""
    size = ["--nodes=1-2", "--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1"]
    # Both nodes are this machine, and DNS does not know their names.
    exported = {"MASTER_ADDR": "127.0.0.1", **variables}
    size += [f"--export=ALL,{','.join(f'{name}={value}' for name, value in exported.items())}", f"--output={log}"]
    return slurm.run("sbatch", "--parsable", *size, str(REPOSITORY / "launch" / "slurm.sbatch"), *train).strip()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_warned_job_is_requeued_and_a_failed_one_is_not(slurm: Slurm, toy_corpus: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "job.log"
    train = ["toy", "--corpus", str(toy_corpus), "--run", str(run), "--ds", "zero2", "fp32", "--set", *TINY]
    train += [f"training.max_updates={UPDATES}"]

    def said() -> str:
        return log.read_text()[-3000:] if log.exists() else "the job did not start"

    # The first task fails because it cannot listen; SIGTERM ends the second, with the exit status of a warned job.
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", free_port()))
        busy.listen()
        failing = submit(slurm, log, *train, MASTER_PORT=str(busy.getsockname()[1]))
        wait_until(lambda: slurm.job(failing)["JobState"] == "FAILED", said)
    assert slurm.job(failing)["Restarts"] == "0"
    assert "is in use by another program" in log.read_text()

    job = submit(slurm, log, *train)
    wait_until(lambda: (run / "metrics.jsonl").exists() and len(losses(run)) >= 5, said)
    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=lost")  # the requeued job gets one node only
    slurm.run("scancel", "--signal=USR1", job)  # reaches the tasks but not the script, as with sbatch --signal
    wait_until(lambda: slurm.job(job)["Restarts"] == "1", said)
    # The requeued job may be training again already, so the log says where the first one stopped.
    stop = re.search(r"at step (\d+); run the same command to resume", log.read_text())
    assert stop is not None, said()
    stopped = int(stop[1])
    assert 5 <= stopped < UPDATES

    wait_until(lambda: slurm.job(job)["JobState"] == "COMPLETED", said)
    assert slurm.job(job)["ExitCode"] == "0:0"
    assert f"resumed at update {stopped}" in log.read_text()
    assert (
        f"step-{stopped:08d} was computed with 2 ranks, ZeRO stage 2, fp32, this run resumes with 1 rank"
        in log.read_text()
    )
    assert len(losses(run)) == UPDATES
    assert latest_state(run) == latest_state(run) | {"step": UPDATES, "world_size": 1}
