"""Corpora built on two nodes, of which one loses its worker: as network namespaces, and by SLURM's batch script."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from support.clusters.dask import dask_process
from support.clusters.nodes import two_nodes
from support.clusters.slurm import slurm_cluster
from support.data.prep import contents, some_chunks, text_and_corpus
from support.processes.forks import REPOSITORY
from support.processes.launching import finish, started, wait_until

PAIRS = 60_000

Given = tuple[list[str], dict[str, bytes]]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return text_and_corpus(tmp_path_factory.mktemp("given"), PAIRS)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_build_survives_the_worker_of_a_node(tmp_path: Path, given: Given) -> None:
    (options, wanted), out, file = given, tmp_path / "corpus", tmp_path / "scheduler.json"
    build = [sys.executable, "-m", "data_prep", "build", *options, "--cluster", str(file), "--out", str(out)]
    with ExitStack() as stack:
        cluster = stack.enter_context(two_nodes(tmp_path / "cluster"))
        first = cluster.nodes[0]
        stack.enter_context(dask_process("scheduler", file, "--host", first.address, before=first.command()))
        workers = [
            stack.enter_context(dask_process("worker", file, "--host", node.address, before=node.command()))
            for node in cluster.nodes
        ]
        with started(first.command(*build), stderr=-1, stdout=-1) as process:
            wait_until(lambda: some_chunks(tmp_path / "corpus.work"), running=[process])
            os.kill(workers[1], signal.SIGKILL)
            assert process.poll() is None
            errors = finish(process)[1]
    assert process.returncode == 0, errors
    assert f"the cluster at tcp://{first.address}:" in errors, "it is not encrypted"
    assert contents(out) == wanted


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.extended
def test_a_job_survives_the_workers_of_a_node(tmp_path: Path, given: Given) -> None:
    """The batch script for SLURM. In the first tier, the test above kills the worker of a node."""
    (options, wanted), out, log = given, tmp_path / "corpus", tmp_path / "job.log"

    def said() -> str:
        return log.read_text()[-3000:] if log.exists() else "the job did not start"

    with slurm_cluster(tmp_path / "cluster") as slurm:
        size = ["--nodes=2", "--cpus-per-task=1", "--export=ALL,DST_INTERFACE=lo", f"--output={log}"]
        script = str(REPOSITORY / "launch" / "slurm-prep.sbatch")
        job = slurm.run("sbatch", "--parsable", *size, script, *options, "--out", str(out), cwd=tmp_path).strip()
        wait_until(lambda: some_chunks(tmp_path / "corpus.work") or slurm.job(job)["JobState"] == "FAILED", said)
        lost = [process for process in psutil.process_iter() if is_worker(process, job, "n2")]
        assert lost, said()
        for process in lost:
            process.kill()
        wait_until(lambda: slurm.job(job)["JobState"] in ("COMPLETED", "FAILED"), said)
        assert slurm.job(job)["ExitCode"] == "0:0", said()
    assert contents(out) == wanted
    assert not list(tmp_path.glob(".dst-prep-*")), "the job's certificate is gone"


def is_worker(process: psutil.Process, job: str, node: str) -> bool:
    """Whether a process is a worker, or starts them again, on this node of the job."""
    try:
        variables, command = process.environ(), process.cmdline()
    except psutil.Error:
        return False
    mine = variables.get("SLURM_JOB_ID") == job and variables.get("SLURMD_NODENAME") == node
    return mine and ("worker" in command or any("multiprocessing" in word for word in command))
