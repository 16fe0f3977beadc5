"""Checks of the nodes in a hostfile: names, logins, the same software, the network back, and clocks."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from dstransformer import __version__
from dstransformer.errors import UserError, shown
from dstransformer.extras.doctor.finding import Finding
from dstransformer.extras.doctor.machine import DEFAULT_PORT, PACKAGES, is_free
from dstransformer.io.files import read_bounded
from dstransformer.io.json_text import JsonError, parse_json

#: Seconds that a login and the check on a node may take.
_LOGIN_SECONDS, _NODE_SECONDS = 10, 120

#: Seconds by which clocks may differ.
CLOCK_SECONDS = 2.0

_MAX_BYTES = 2**20
_HOST = re.compile(r"(\S+)\s+slots=(\d+)")

#: Run on a node, with the names of packages, address and port of a listener here (or nothing), and the names of all
#: nodes. Prints one line of JSON.
_PROGRAM = """
import json, platform, socket, sys
from importlib.metadata import PackageNotFoundError, version
packages, listener, names = sys.argv[1].split(), sys.argv[2].split(), sys.argv[3:]
found = {"host": platform.node(), "python": platform.python_version(), "unresolved": [], "unreachable": ""}
for package in packages:
    try:
        found[package] = version(package)
    except PackageNotFoundError:
        found[package] = None
try:
    import dstransformer
    found["dstransformer"] = dstransformer.__version__
except ImportError as error:
    found["dstransformer"] = None
for name in names:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        found["unresolved"].append(name)
if listener:
    try:
        socket.create_connection((listener[0], int(listener[1])), 10).close()
    except OSError as error:
        found["unreachable"] = str(error)
print(json.dumps(found))
"""


class Report(NamedTuple):
    """What :data:`_PROGRAM` found on a node, and by how many seconds, as far as the login tells, its clock is ahead."""

    found: Mapping[str, Any]
    skew: float


def read_hostfile(path: Path) -> tuple[list[str], list[Finding]]:
    """Read a hostfile as DeepSpeed does: ``NAME slots=N`` on each line.

    Returns:
        The names, and findings about lines that DeepSpeed would refuse.

    Raises:
        UserError: The file cannot be read, or names no host.
    """
    try:
        lines = read_bounded(path, _MAX_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"cannot read --hostfile {path}: {error.strerror}; name a file as for deepspeed") from None
    hosts: list[str] = []
    wrong = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _HOST.match(text)
        if match is None:
            wrong.append(f"line {number} is {shown(text, limit=40)}, not NAME slots=N")
        elif match[1] in hosts:
            wrong.append(f"line {number} names {match[1]} again")
        elif match[1].startswith("-"):
            wrong.append(f"line {number} is {shown(text, limit=40)}, not the name of a host")
        else:
            hosts.append(match[1])
    if not hosts:
        raise UserError(f"--hostfile {path} names no host: write lines such as node-1 slots=8")
    advice = "correct the line: deepspeed refuses the file as it is"
    return hosts, [Finding("hostfile", f"{path}: {'; '.join(wrong)}", "FAULT", advice)] if wrong else []


def check_nodes(hosts: Sequence[str], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check every node of a hostfile, all at once, from this machine. ``MASTER_PORT`` is where processes join."""
    if shutil.which("pdsh") is None:
        yield Finding("pdsh", "not installed; deepspeed --hostfile calls it", "FAULT", "apt-get install pdsh")
    if shutil.which("ssh") is None:
        yield Finding("ssh", "not installed", "FAULT", "apt-get install openssh-client")
        return
    yield check_own_name(environment)
    port = environment.get("MASTER_PORT", "")
    with _listening(int(port) if port.isdecimal() else DEFAULT_PORT) as listener:
        questions = shlex.join([" ".join(PACKAGES), "" if listener is None else "{} {}".format(*listener), *hosts])
        with ThreadPoolExecutor(min(32, len(hosts))) as pool:
            answers = list(pool.map(lambda host: ask(host, questions), hosts))
    for host, answer in zip(hosts, answers, strict=True):
        yield judge(host, answer, listener) if isinstance(answer, Report) else answer


def check_own_name(environment: Mapping[str, str]) -> Finding:
    """Whether this machine's own name leads to an address that other nodes reach, for gloo."""
    if interface := _launcher_variable("GLOO_SOCKET_IFNAME", environment):
        return Finding("own name", f"GLOO_SOCKET_IFNAME is {interface}")
    name = socket.gethostname()
    addresses: list[str] = []
    with suppress(OSError):
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)})
    if any(not address.startswith("127.") and address != "::1" for address in addresses):
        return Finding("own name", f"{name} is {', '.join(addresses)}")
    state = f"resolves to {', '.join(addresses)}" if addresses else "does not resolve"
    return Finding(
        "own name", f"{name} {state}, which other nodes cannot reach", "FAULT",
        "put GLOO_SOCKET_IFNAME=eth0 (the network between the nodes) into .deepspeed_env, or mend /etc/hosts",
    )  # fmt: skip


def _launcher_variable(name: str, environment: Mapping[str, str]) -> str:
    """A variable as the ranks that ``deepspeed`` starts have it: from ``.deepspeed_env``, or from here."""
    for folder in (Path(), Path.home()):
        with suppress(OSError):
            for line in (folder / ".deepspeed_env").read_text(encoding="utf-8", errors="replace").splitlines():
                if line.partition("=")[0].strip() == name:
                    return line.partition("=")[2].strip()
    return environment.get(name, "")


def ask(host: str, questions: str) -> Report | Finding:
    """Log in to a node, and run :data:`_PROGRAM` there with this Python, in this folder, as ``deepspeed`` does.

    Returns:
        What the program found, or why it did not run.
    """
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        if not _is_ssh_alias(host):
            text = f"the name does not resolve ({error.strerror or error})"
            return Finding(f"node {host}", text, "FAULT", "add it to DNS or /etc/hosts, or name its address")
    command = (
        f"date +%s.%N; cd {shlex.quote(os.getcwd())} && "  # noqa: PTH109 - the name that deepspeed gives
        f"PYTHONPATH={shlex.quote(os.environ.get('PYTHONPATH', ''))} "
        f"{shlex.quote(sys.executable)} -c {shlex.quote(_PROGRAM)} {questions}"
    )
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_LOGIN_SECONDS}"]
    began = time.time()
    with tempfile.TemporaryFile("w+", errors="replace") as printed, subprocess.Popen(
        ["ssh", *options, host, command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=printed, text=True, errors="replace",
    ) as login:  # fmt: skip
        timer = threading.Timer(_NODE_SECONDS, login.kill)
        timer.start()
        assert login.stdout is not None
        stated, read = login.stdout.readline().strip(), time.time()
        output = login.stdout.read()  # not communicate(), which does not know what readline() has read ahead
        login.wait()
        timer.cancel()
        printed.seek(0)
        errors = printed.read()
    if (match := re.fullmatch(r"(\d+(?:\.\d+)?)\D*", stated)) is None:  # some systems have no %N
        return _explain_login(host, login.returncode, errors)
    clock = float(match[1])
    skew = clock - min(max(clock, began), read)
    report = None
    with suppress(JsonError, IndexError):
        report = parse_json(output.strip().splitlines()[-1])
    if isinstance(report, dict):
        return Report(report, skew)
    reason = (errors.strip().splitlines() or [f"status {login.returncode}"])[-1]
    text = f"{sys.executable} in {Path.cwd()} does not run there ({reason})"
    return Finding(f"node {host}", text, "FAULT", "put this checkout and its .venv under the same path")


def _is_ssh_alias(host: str) -> bool:
    """Whether ssh's configuration gives the name another one, which need not resolve here."""
    with suppress(OSError, subprocess.SubprocessError):
        shown_config = subprocess.run(["ssh", "-G", host], capture_output=True, text=True, timeout=10, check=False)
        return any(
            line.startswith(("proxyjump ", "proxycommand "))
            or (line.startswith("hostname ") and line.split()[1] != host.lower())
            for line in shown_config.stdout.splitlines()
        )
    return False


def _explain_login(host: str, status: int, errors: str) -> Finding:
    """What is wrong if a login printed no time."""
    name, reason = f"node {host}", (errors.strip().splitlines() or [f"status {status}"])[-1]
    if status < 0:
        text = f"no answer within {_NODE_SECONDS} s"
        return Finding(name, text, "FAULT", "look at that machine, and at the network to it")
    if "Permission denied" in reason:
        return Finding(name, f"no login without a password ({reason})", "FAULT", f"ssh-copy-id {host}")
    if "Host key verification failed" in errors:
        return Finding(name, "ssh does not know its host key", "FAULT", f"compare it once: ssh {host}")
    advice = "start sshd there, and open port 22 in the firewall"
    return Finding(name, f"ssh cannot reach it ({reason})", "FAULT", advice)


def judge(host: str, report: Report, listener: tuple[str, int] | None) -> Finding:
    """The finding about a node: its first fault, or what it has in common with this machine."""
    name, found = f"node {host}", report.found
    here = {"dstransformer": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            here[package] = version(package)
    differing = [
        f"{key} {found.get(key) or 'missing'} (here {value})" for key, value in here.items() if found.get(key) != value
    ]
    if differing:
        return Finding(name, f"other versions: {', '.join(differing)}", "FAULT", "install the same on all nodes")
    if found.get("unresolved"):
        names = ", ".join(map(str, found["unresolved"]))
        return Finding(name, f"does not resolve {names}", "FAULT", "add the name to DNS, or to /etc/hosts there")
    if found.get("unreachable") and listener is not None:
        text = f"cannot connect to {listener[0]} port {listener[1]}, where processes join ({found['unreachable']})"
        return Finding(name, text, "FAULT", "open the firewall between the nodes, or give deepspeed --master_addr")
    if abs(report.skew) > CLOCK_SECONDS:
        text = f"its clock is {report.skew:+,.0f} s from this machine's"
        return Finding(name, text, "FAULT", "set both by NTP (chrony, systemd-timesyncd)")
    reached = ", connects back" if listener is not None else ""
    return Finding(name, f"login, the same versions, names, clock{reached}")


@contextmanager
def _listening(port: int) -> Iterator[tuple[str, int] | None]:
    """Listen where rank 0 would. Yields address and port; None if the port is taken or the address is not known."""
    listed = ""
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["hostname", "-I"], capture_output=True, text=True, timeout=10, check=False).stdout
    address = next(iter(listed.split()), None)  # what ``deepspeed`` gives to all ranks for this machine
    if address is None or not is_free(port):
        yield None
        return
    with socket.create_server(("", port), backlog=128):  # the kernel accepts; nobody needs to answer
        yield address, port
