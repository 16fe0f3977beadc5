"""Training across two nodes with the command from the README: pdsh, ssh, a hostfile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters.nodes import TwoNodes, two_nodes
from support.clusters.tools import UnavailableError
from support.processes.forks import REPOSITORY
from support.processes.launching import HANG_SECONDS, run_command, run_dst, started, wait_until
from support.training.runs import TINY, latest_state, losses

from dstransformer.errors import RUN_AGAIN

UPDATES = 10


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TwoNodes]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    try:
        with two_nodes(folder) as nodes:
            yield nodes
    except UnavailableError as reason:
        pytest.skip(str(reason))


def train_arguments(corpus: Path, run: Path, updates: int = UPDATES) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", "zero2", "bf16", "--set", *TINY]
    return [*options, f"training.max_updates={updates}"]


@pytest.mark.cluster
@pytest.mark.slow
def test_two_nodes_train_like_two_local_ranks(cluster: TwoNodes, toy_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "hostfile").write_text("".join(f"{node.address} slots=1\n" for node in cluster.nodes))
    (tmp_path / ".deepspeed_env").write_text("GLOO_SOCKET_IFNAME=eth0\nOMP_NUM_THREADS=1\n")
    launch = ["deepspeed", "--hostfile", "launch/hostfile", "--module", "dstransformer"]
    command = cluster.nodes[0].command(*launch, *train_arguments(toy_corpus, tmp_path / "nodes"))
    done = run_command(command, env=cluster.environment, cwd=tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    # pdsh prefixes every line with the node's name; each rank logs where the launcher started it.
    for rank, node in enumerate(cluster.nodes):
        assert f"{node.address}: " in output
        assert f"nnodes=2, num_local_procs=1, node_rank={rank}" in output

    stopped = tmp_path / "stopped"
    wrapper = str(REPOSITORY / "launch" / "exit-status.sh")
    command = cluster.nodes[0].command(wrapper, *launch, *train_arguments(toy_corpus, stopped, 100_000))
    with started(command, cluster.environment, cwd=tmp_path) as program:
        wait_until(lambda: (stopped / "metrics.jsonl").exists() and len(losses(stopped)) >= 5)
        program.terminate()
        assert program.wait(HANG_SECONDS) == RUN_AGAIN
    assert latest_state(stopped)["step"] == len(losses(stopped))

    across_nodes = losses(tmp_path / "nodes")
    assert len(across_nodes) == UPDATES
    assert across_nodes[-1] < 0.95 * across_nodes[0]
    assert latest_state(tmp_path / "nodes")["world_size"] == 2

    local = run_dst(*train_arguments(toy_corpus, tmp_path / "local"), ranks=2)
    assert local.returncode == 0, local.stderr[-3000:]
    assert across_nodes == pytest.approx(losses(tmp_path / "local"), rel=1e-5)
