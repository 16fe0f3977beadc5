"""``dst doctor --hostfile`` between two nodes, with real logins: it finds what is wrong, and nothing else."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clusters.nodes import TwoNodes, two_nodes
from support.processes.launching import run_command

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

Findings = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("doctor") / "cluster") as nodes:
        yield nodes


@pytest.fixture
def hostfile(cluster: TwoNodes, tmp_path: Path) -> Path:
    """A hostfile of both nodes, in the folder where the doctor runs."""
    (tmp_path / ".deepspeed_env").write_text("GLOO_SOCKET_IFNAME=eth0\n")
    path = tmp_path / "hostfile"
    path.write_text("".join(f"{node.address} slots=1\n" for node in cluster.nodes))
    return path


def doctor(cluster: TwoNodes, hostfile: Path, **extra: str) -> tuple[int, Findings]:
    command = [sys.executable, "-m", "dstransformer", "doctor", "--hostfile", str(hostfile), "--json"]
    done = run_command(cluster.nodes[0].command(*command), env={**cluster.environment, **extra}, cwd=hostfile.parent)
    assert done.stderr == ""
    return done.returncode, {finding["name"]: finding for finding in json.loads(done.stdout)}


def assert_faults(outcome: tuple[int, Findings], faults: dict[str, tuple[str, ...]]) -> None:
    """Check that exactly these faults were found, and that their lines have these parts."""
    status, found = outcome
    found_faults = {name: finding for name, finding in found.items() if finding["level"] == "FAULT"}
    assert list(found_faults) == list(faults), found_faults
    assert status == (1 if faults else 0)
    for name, parts in faults.items():
        line = f"{found[name]['text']}: {found[name]['advice']}"
        assert [part for part in parts if part not in line] == [], line


def wrap(folder: Path, program: str, script: str) -> str:
    """A folder for PATH with a program that runs a script instead."""
    folder.mkdir()
    (folder / program).write_text(f"#!/bin/sh\n{script}\n")
    (folder / program).chmod(0o755)
    return str(folder)


def test_healthy_nodes_have_no_fault(cluster: TwoNodes, hostfile: Path) -> None:
    outcome = doctor(cluster, hostfile)
    assert_faults(outcome, {})
    for node in cluster.nodes:
        said = outcome[1][f"node {node.address}"]["text"]
        assert said == "login, the same versions, names, clock, connects back"


def test_names_logins_and_hosts_that_fail_are_found_at_once(cluster: TwoNodes, hostfile: Path, tmp_path: Path) -> None:
    second = cluster.nodes[1].address
    hostfile.write_text(
        f"# nodes\n{second} slots=1\nno-such-node.invalid slots=1\n198.18.0.9 slots=1\nnode-4\n{second} slots=2\n"
    )
    outcome = doctor(cluster, hostfile)
    assert_faults(outcome, {
        "hostfile": ("line 5 is 'node-4', not NAME slots=N; line 6 names 198.18.0.2 again",),
        f"node {second}": ("does not resolve no-such-node.invalid", "/etc/hosts there"),
        "node no-such-node.invalid": ("the name does not resolve", "add it to DNS or /etc/hosts"),
        "node 198.18.0.9": ("ssh cannot reach it", "start sshd there"),
    })  # fmt: skip


def test_a_host_without_our_key_is_found(cluster: TwoNodes, hostfile: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert run_command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)]).returncode == 0
    real = cluster.environment["PATH"].split(os.pathsep)[0]
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    folder = wrap(tmp_path / "bin", "ssh", f'exec /usr/bin/ssh -F none -i {other} -o IdentitiesOnly=yes {options} "$@"')
    outcome = doctor(cluster, hostfile, PATH=f"{folder}:{cluster.environment['PATH'].removeprefix(real)}")
    said = ("no login without a password (", "Permission denied", "ssh-copy-id 198.18.0.")
    assert_faults(outcome, {f"node {node.address}": said for node in cluster.nodes})


def test_a_clock_and_a_package_that_differ_are_found(cluster: TwoNodes, hostfile: Path, tmp_path: Path) -> None:
    """The login of one node runs another ``date``, then sees another package first."""
    address = cluster.nodes[1].address
    hostfile.write_text(f"{address} slots=1\n")
    real = cluster.environment["PATH"].split(os.pathsep)[0]
    late = wrap(tmp_path / "late", "date", f"echo {time.time() + 3600:.3f}")
    shell = wrap(
        tmp_path / "bin",
        "ssh",
        f'for last; do :; done; set -- "$1" "$2" "$3" "$4" "$5" "PATH={late}:$PATH; $last"; exec {real}/ssh "$@"',
    )
    outcome = doctor(cluster, hostfile, PATH=f"{shell}:{cluster.environment['PATH']}")
    assert_faults(outcome, {f"node {address}": ("its clock is +3,", " s from this machine's", "NTP")})
    metadata = tmp_path / "site" / "torch-1.0.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0.0\n")
    (Path(shell) / "ssh").write_text(
        "#!/bin/sh\nfor last; do :; done\n"
        f'changed=$(printf %s "$last" | sed "s#PYTHONPATH=#PYTHONPATH={tmp_path}/site:#")\n'
        f'exec {real}/ssh "$1" "$2" "$3" "$4" "$5" "$changed"\n'
    )
    outcome = doctor(cluster, hostfile, PATH=f"{shell}:{cluster.environment['PATH']}")
    assert_faults(
        outcome, {f"node {address}": ("other versions: torch 1.0.0 (here 2.", "install the same on all nodes")}
    )


def test_a_name_that_leads_to_this_machine_only_is_found(cluster: TwoNodes, hostfile: Path) -> None:
    (hostfile.parent / ".deepspeed_env").unlink()
    status, found = doctor(cluster, hostfile)
    if found["own name"]["level"] == "ok":
        pytest.skip("the name of this machine leads to an address that others reach")
    assert_faults((status, found), {"own name": ("which other nodes cannot reach", "GLOO_SOCKET_IFNAME=eth0")})
