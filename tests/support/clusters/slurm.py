"""A SLURM cluster of two nodes on one machine."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.clusters.tools import find_tools
from support.processes.forks import environment
from support.processes.launching import HANG_SECONDS, free_port, marked, started, wait_until

TOOLS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
NODES = ("n1", "n2")


@dataclass(frozen=True)
class Slurm:
    """A running SLURM cluster. ``environment`` lets the SLURM tools find it."""

    environment: dict[str, str]

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Run a SLURM tool; return its output."""
        done = subprocess.run(
            command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """The fields of a job: JobState, Restarts, ExitCode …"""
        words = self.run("scontrol", "show", "job", "--oneliner", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Slurm]:
    """Start munged, slurmctld and two slurmd; on exit, end them and all processes they started.

    Skips the test without root, or if a tool is missing.

    Args:
        folder: A new folder for keys, state and logs.
    """
    folder.mkdir()
    tools = find_tools(TOOLS, "slurm-wlm munge")
    socket = folder / "munge.socket"
    config = folder / "slurm.conf"
    config.write_text(_configuration(folder, socket))
    with ExitStack() as stack:
        # sbatch passes its environment on to the job, so the mark identifies the processes of a job.
        slurm = Slurm(stack.enter_context(marked(environment({"SLURM_CONF": str(config)}))))
        _start(stack, folder, [tools["munged"], *_munge(folder, socket, tools)])
        _wait_until(socket.exists, "munged created no socket", folder)
        _start(stack, folder, [tools["slurmctld"], "-D", "-i", "-f", str(config)])
        for node in NODES:
            _start(stack, folder, [tools["slurmd"], "-D", "-N", node, "-f", str(config)])
        stack.callback(_cancel_all, slurm, folder)
        _wait_until(lambda: _idle(slurm) == len(NODES), "the nodes are not idle", folder)
        yield slurm


def _configuration(folder: Path, socket: Path) -> str:
    common = {
        "ClusterName": "dst",
        "SlurmctldHost": f"{platform.node()}(127.0.0.1)",
        "SlurmctldPort": free_port(),
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        # A requeued job waits until its credentials have expired, by default 120 seconds.
        "AuthInfo": f"socket={socket},cred_expire=5",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool-%n",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "%n.pid",
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/linear",
        "ReturnToService": 2,
        "JobRequeue": 1,
        "KillWait": 5,
        "SchedulerParameters": "sched_interval=2",
    }
    nodes = [
        f"NodeName={node} NodeHostname={platform.node()} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 RealMemory=1000"
        for node in NODES
    ]
    lines = [f"{name}={value}" for name, value in common.items()]
    partition = f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP"
    return "\n".join([*lines, *nodes, partition, ""])


def _munge(folder: Path, socket: Path, tools: dict[str, str]) -> list[str]:
    key = folder / "munge.key"
    subprocess.run([tools["mungekey"], "--create", f"--keyfile={key}"], check=True, timeout=HANG_SECONDS)
    files = {"socket": socket, "key-file": key, "pid-file": folder / "munged.pid", "seed-file": folder / "munge.seed"}
    # --force: temporary folders are not as private as munged wants them.
    return ["--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())]


def _start(stack: ExitStack, folder: Path, command: Sequence[str]) -> None:
    log = stack.enter_context((folder / f"{Path(command[0]).name}.log").open("ab"))
    stack.enter_context(started(command, stdout=log, stderr=log))


def _cancel_all(slurm: Slurm, folder: Path) -> None:
    """Cancel all jobs before the daemons end; otherwise a job's ``slurmstepd``, which lacks the mark, would stay."""
    slurm.run("scancel", "--me")
    _wait_until(lambda: slurm.run("squeue", "--noheader") == "", "a job does not end", folder)


def _idle(slurm: Slurm) -> int:
    command = ["scontrol", "show", "nodes", "--oneliner"]
    done = subprocess.run(
        command, env=slurm.environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    return done.stdout.count("State=IDLE ")


def _wait_until(condition: Callable[[], bool], message: str, folder: Path) -> None:
    def logs() -> str:
        return "\n".join([message, *(f"{log.name}: {log.read_text()[-1000:]}" for log in folder.glob("*.log"))])

    wait_until(condition, logs)
