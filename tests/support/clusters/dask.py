"""Dask clusters: a scheduler and workers as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.processes.forks import environment
from support.processes.launching import HANG_SECONDS, started, wait_until


def tls_environment(folder: Path) -> dict[str, str]:
    """Make a certificate as the files in ``launch/`` do; return the variables with which all processes speak TLS."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=dst-prep"
    command += f" -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True, timeout=HANG_SECONDS)
    prefix = "DASK_DISTRIBUTED__COMM__"
    variables = {f"{prefix}REQUIRE_ENCRYPTION": "True", f"{prefix}TLS__CA_FILE": str(certificate)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        variables |= {f"{prefix}TLS__{role}__CERT": str(certificate), f"{prefix}TLS__{role}__KEY": str(key)}
    return variables


@contextmanager
def dask_process(
    role: str, file: Path, *options: str, before: Sequence[str] = (), extra: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Start a scheduler or a worker; yield the process's id.

    Args:
        role: ``scheduler`` or ``worker``.
        file: The scheduler's file. A scheduler has written it when the block begins.
        options: Further options.
        before: The command that starts it, such as that of a node.
        extra: Further environment variables.
    """
    if role == "scheduler":
        file.unlink(missing_ok=True)
    command = [*before, sys.executable, "-m", "dask", role, "--scheduler-file", str(file), "--no-dashboard", *options]
    command += ["--port", "0", "--no-show"] if role == "scheduler" else ["--nthreads", "1", "--no-nanny"]
    log = file.with_name(f"{file.stem}-{role}.log")
    with (
        log.open("ab") as output,
        started(command, environment(extra), stdout=output, stderr=output, cwd=file.parent) as process,
    ):
        if role == "scheduler":
            wait_until(lambda: file.is_file() and file.stat().st_size > 0, log.read_text)
        yield process.pid
