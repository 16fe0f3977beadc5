"""Corpora built on two nodes, of which one loses its worker: as network namespaces, and by SLURM's batch script."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.clusters.dask import dask_process
from support.clusters.nodes import two_nodes
from support.data.prep import contents, some_chunks, text_and_corpus
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
