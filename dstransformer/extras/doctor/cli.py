"""``dst doctor``: check this machine, the nodes of a cluster, or a run, and say what to do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.errors import UserError
from dstransformer.io.flags import argument, option

if TYPE_CHECKING:
    from dstransformer.extras.doctor.finding import Finding

#: The exit status if a check has found a fault.
FAULT_STATUS = 1


class Doctor(
    Command,
    epilog="One line for each check: ok, note or FAULT, and what to do. Exit status 1 if there is a FAULT.",
    examples=("dst doctor", "dst doctor runs/en-de"),
):
    """Check this machine before a training, or find out why a run ended."""

    run: Folder | None = argument("RUN", "run folder; without it, the machine", default=None)
    runs: Folder | None = option("where runs are or will be: its disk, mlflow.db, records (runs)", "FOLDER")
    hostfile: Path | None = option("also check the nodes in this file, as deepspeed takes it", "FILE")
    json: bool = option("print the findings as JSON")


@Doctor.handler
def run(options: Doctor) -> CommandResult:
    """Run the checks. The exit status is 1 if one of them has found a fault."""
    from dstransformer.extras.doctor.finding import describe

    findings = _check(options)
    if options.json:
        text = json.dumps([finding.to_json() for finding in findings], indent=2)
    else:
        text = describe(findings, shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None)
    return CommandResult(text, FAULT_STATUS if any(finding.level == "FAULT" for finding in findings) else 0)


def _check(options: Doctor) -> list[Finding]:
    if options.run is not None:
        for name in ("runs", "hostfile"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name} is for the check of the machine: leave it out, or leave out RUN")
        from dstransformer.extras.doctor.run import check_run

        return check_run(options.run)
    from dstransformer.extras.doctor import machine, nodes, store
    from dstransformer.extras.doctor.finding import collect

    hosts, findings = ([], []) if options.hostfile is None else nodes.read_hostfile(options.hostfile)
    runs = Path("runs") if options.runs is None else options.runs
    findings += collect(
        ("versions", machine.check_versions),
        ("devices", machine.check_devices),
        ("compiler", machine.check_compiler),
        ("disk", lambda: machine.check_disk(runs)),
        ("/dev/shm", machine.check_shared_memory),
        ("port", lambda: machine.check_port(os.environ)),
        ("clock", machine.check_clock),
        ("mlflow store", lambda: store.check_default_store(runs)),
        ("records", lambda: store.check_outboxes(runs)),
    )
    return findings + collect(("nodes", lambda: nodes.check_nodes(hosts, os.environ) if hosts else ()))
