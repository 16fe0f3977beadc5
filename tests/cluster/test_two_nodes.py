"""Training across two nodes with the command from the README: pdsh, ssh, a hostfile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters.nodes import TwoNodes, two_nodes
from support.processes.forks import REPOSITORY
from support.processes.launching import HANG_SECONDS, started, wait_until
from support.processes.ranks import run_dst_ranks
from support.training.runs import TINY, latest_state, losses

from dstransformer.errors import RUN_AGAIN

UPDATES = 10


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path / "cluster") as nodes:
        yield nodes


def train_arguments(corpus: Path, run: Path, updates: int = UPDATES) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", "zero2", "bf16", "--set", *TINY]
    return [*options, f"training.max_updates={updates}"]


@pytest.fixture
def launch(cluster: TwoNodes, tmp_path: Path) -> list[str]:
    """The command that starts a training on both nodes, without the arguments of ``dst``."""
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "hostfile").write_text("".join(f"{node.address} slots=1\n" for node in cluster.nodes))
    (tmp_path / ".deepspeed_env").write_text("GLOO_SOCKET_IFNAME=eth0\nOMP_NUM_THREADS=1\n")
    return ["deepspeed", "--hostfile", "launch/hostfile", "--module", "dstransformer"]


@pytest.mark.cluster
@pytest.mark.slow
def test_two_nodes_train_like_two_local_ranks(
    cluster: TwoNodes, launch: list[str], toy_corpus: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "nodes", tmp_path / "log"
    wrapper = str(REPOSITORY / "launch" / "exit-status.sh")
    command = cluster.nodes[0].command(wrapper, *launch, *train_arguments(toy_corpus, run, 100_000))
    with (
        log.open("w") as output,
        started(command, cluster.environment, cwd=tmp_path, stdout=output, stderr=output) as program,
    ):
        logged = run / "metrics.jsonl"
        wait_until(lambda: logged.exists() and len(losses(run)) >= UPDATES, log.read_text, running=[program])
        program.terminate()
        assert program.wait(HANG_SECONDS) == RUN_AGAIN
    # pdsh prefixes every line with the node's name; each rank logs where the launcher started it.
    for rank, node in enumerate(cluster.nodes):
        assert f"{node.address}: " in log.read_text()
        assert f"nnodes=2, num_local_procs=1, node_rank={rank}" in log.read_text()
    across_nodes = losses(run)
    assert latest_state(run) == latest_state(run) | {"step": len(across_nodes), "world_size": 2}
    assert across_nodes[UPDATES - 1] < 0.95 * across_nodes[0]

    local = run_dst_ranks(2, *train_arguments(toy_corpus, tmp_path / "local"))
    assert local.returncode == 0, local.stderr[-3000:]
    assert across_nodes[:UPDATES] == pytest.approx(losses(tmp_path / "local"), rel=1e-5)
