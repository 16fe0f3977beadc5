"""Runs one command of the workflow, and records what it made.

Snakemake decides what runs. This program adds what it lacks: the products of earlier steps are compared with their
hashes before they are read, and the record of a step appears when all its products are complete.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from dstransformer.errors import DataError, DstError
from dstransformer.io.command import run_guarded
from dstransformer.io.files import file_sha256, replace_file, replacing
from dstransformer.io.json_text import read_record

FORMAT_VERSION = 1


class StepError(DstError):
    """The command of a step failed."""

    exit_code = 1


def main() -> int:
    """Run the step that the command line names."""
    parser = argparse.ArgumentParser(description="Run a command and record what it made.")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    parser.add_argument(
        "--after", type=Path, nargs="*", default=[], help="records of the steps whose products are read"
    )
    parser.add_argument("--makes", type=Path, nargs="+", required=True, help="files and folders that the command makes")
    parser.add_argument("--stdout", type=Path, help="file for what the command prints")
    parser.add_argument("--log", type=Path, required=True, help="file for its messages")
    parser.add_argument("--cores", type=int, default=1, help="cores that the step has")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:]  # after `--`
    for record in options.after:
        check(record)
    with own_cores(options.cores):
        seconds = run(options.record.stem, command, options.stdout, options.log)
    content = {
        "format_version": FORMAT_VERSION,
        "step": options.record.stem,
        "command": shlex.join(command) + (f" > {shlex.quote(str(options.stdout))}" if options.stdout else ""),
        "seconds": round(seconds, 2),
        "cores": options.cores,
        "products": [
            {"path": str(path), "bytes": path.stat().st_size, "sha256": file_sha256(path)}
            for root in options.makes
            for path in ([root] if root.is_file() else sorted(root.rglob("[!.]*")))
            if path.is_file()
        ],
    }
    replace_file(options.record, json.dumps(content, indent=2) + "\n")
    return 0


@contextlib.contextmanager
def own_cores(cores: int) -> Iterator[None]:
    """Within it, a step that has all cores of the workflow runs alone on its machine.

    Snakemake 9.10 to 9.16 lets other steps run beside it (their issue 3913). Jobs of SLURM have cores of their own.
    """
    if "SLURM_JOB_ID" in os.environ:
        yield
        return
    workflow = hashlib.sha256(os.fsencode(Path.cwd())).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"distill-{os.getuid()}-{workflow}.lock")  # anyone may write there
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if cores >= int(os.environ.get("DISTILL_CORES", "1")) else fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


def check(record: Path) -> None:
    """Compare the products of an earlier step with its record.

    Raises:
        DataError: One is gone or has changed.
    """
    again = f"delete {record}, and the same command repeats step {record.stem}; other steps are kept"
    found = read_record(record, dict, newest=FORMAT_VERSION, advice=again)
    for product in found["products"]:
        path = Path(product["path"])
        if not path.is_file():
            raise DataError(f"{path}, which step {record.stem} made, is gone: {again}")
        if path.stat().st_size != product["bytes"] or file_sha256(path) != product["sha256"]:
            raise DataError(f"{path} is not what step {record.stem} made, it was damaged or changed: {again}")


def run(step: str, command: list[str], stdout: Path | None, log: Path) -> float:
    """Run a command, and return the seconds that it took.

    Raises:
        StepError: It failed; the message ends with the last error that it printed, or the last line.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        messages = printed = stack.enter_context(log.open("ab"))
        start = messages.tell()
        if stdout is not None:
            printed = stack.enter_context(stack.enter_context(replacing(stdout)).open("wb"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=messages)

        def forward(number: int, _: FrameType | None) -> None:
            process.send_signal(number)

        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the command too, which ends in its own way
        signal.signal(signal.SIGTERM, forward)
        if status := process.wait():
            how = f"status {status}" if status > 0 else signal.Signals(-status).name
            lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
            lines = [line.strip() for line in lines if line.strip()] or ["it printed nothing"]
            said = next((line for line in reversed(lines) if ": error: " in line), lines[-1])
            raise StepError(f"step {step} ended with {how}: {said} (log: {log}); run the same command to go on from it")
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(run_guarded("distill", main))
