"""Two nodes on one machine: network namespaces connected by a veth pair, with an sshd in each.

A login sees the processes of its node only: DeepSpeed, when stopped, calls ``pkill`` for every ``deepspeed`` of a node.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.clusters.tools import find_tools
from support.processes.forks import environment
from support.processes.launching import HANG_SECONDS, started

PRIVILEGE_SEPARATION = Path("/run/sshd")  # sshd needs this folder, which is missing if sshd was never started


@dataclass(frozen=True)
class Node:
    """A network namespace and the address of its ``eth0``."""

    namespace: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs a command on this node."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


@dataclass(frozen=True)
class TwoNodes:
    """Two nodes. The first one launches; with ``environment`` its ssh logs in to both without a prompt."""

    nodes: tuple[Node, Node]
    environment: dict[str, str]


@contextmanager
def two_nodes(folder: Path) -> Iterator[TwoNodes]:
    """Set up two nodes; on exit, remove them and kill every process on them.

    Skips the test without root, if a tool is missing, or if the kernel does not allow namespaces.

    Args:
        folder: A new folder for keys and logs.
    """
    folder.mkdir()
    names = ("ip", "ssh", "sshd", "ssh-keygen", "pdsh", "unshare")
    tools = find_tools(names, "iproute2 openssh-server openssh-client pdsh util-linux")
    nodes = (Node(f"dst-{os.getpid()}-a", "198.18.0.1"), Node(f"dst-{os.getpid()}-b", "198.18.0.2"))
    variables = environment()
    variables["PATH"] = os.pathsep.join([str(_write_ssh(folder, tools)), variables["PATH"], "/usr/sbin", "/sbin"])
    with ExitStack() as stack:
        PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)  # and it stays: other tests may be using it
        for node in nodes:
            _set_up("netns", "add", node.namespace)
            stack.callback(_remove, node)
        _connect(*nodes)
        for node in nodes:
            _start_sshd(stack, node, folder, tools)
        for node in nodes:
            _wait_for_login(nodes[0], node, variables)
        yield TwoNodes(nodes, variables)


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def _set_up(*arguments: str) -> None:
    done = _ip(*arguments)
    if done.returncode != 0:
        pytest.skip(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _connect(first: Node, second: Node) -> None:
    cable = ["type", "veth", "peer", "name", "eth0", "netns", second.namespace]
    _set_up("link", "add", "eth0", "netns", first.namespace, *cable)
    for node in (first, second):
        _set_up("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _set_up("-n", node.namespace, "link", "set", device, "up")


def _write_ssh(folder: Path, tools: dict[str, str]) -> Path:
    """Create keys, and a folder for PATH with an ``ssh`` that uses them, in place of ``~/.ssh``."""
    for name in ("key", "host_key"):
        command = [tools["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=HANG_SECONDS)
    options = {"IdentityFile": folder / "key", "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null"}
    options |= {"LogLevel": "ERROR", "BatchMode": "yes", "ConnectTimeout": "5"}
    (folder / "ssh_config").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    binaries = folder / "bin"
    binaries.mkdir()
    (binaries / "ssh").write_text(f'#!/bin/sh\nexec {tools["ssh"]} -F {folder / "ssh_config"} "$@"\n')
    (binaries / "ssh").chmod(0o755)
    return binaries


def _start_sshd(stack: ExitStack, node: Node, folder: Path, tools: dict[str, str]) -> None:
    options = {"ListenAddress": node.address, "HostKey": folder / "host_key", "AuthorizedKeysFile": folder / "key.pub"}
    options |= {"PidFile": "none", "StrictModes": "no", "UsePAM": "no", "PasswordAuthentication": "no"}
    config = folder / f"{node.namespace}.conf"
    config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    log = stack.enter_context((folder / f"{node.namespace}.log").open("wb"))
    own_processes = [tools["unshare"], "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = node.command(*own_processes, tools["sshd"], "-D", "-e", "-f", str(config))
    stack.enter_context(started(command, stdout=log, stderr=log))


def _wait_for_login(origin: Node, target: Node, variables: dict[str, str]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        command = origin.command("ssh", target.address, "true")
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, f"no login on {target.address}: {done.stderr}"
        time.sleep(0.2)


def _remove(node: Node) -> None:
    """Kill every process on a node, then remove the node and its end of the veth pair."""
    deadline = time.monotonic() + HANG_SECONDS
    while pids := _ip("netns", "pids", node.namespace).stdout.split():
        assert time.monotonic() < deadline, f"cannot be killed on {node.namespace}: {pids}"
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)
    done = _ip("netns", "delete", node.namespace)
    assert done.returncode == 0, done.stderr
