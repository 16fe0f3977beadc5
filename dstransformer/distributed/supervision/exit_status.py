"""The exit status of a run in a file, for those who start it: some launchers turn every status into 1."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

from dstransformer.errors import DstError
from dstransformer.io.files import replace_file

#: In the run folder: the status and when the run ended (Unix seconds), in one line.
STATUS_NAME = "exit-status"


def record_exit_status(run: Path, status: int) -> None:
    """Write the status into the run folder. If the disk refuses it, there is only the launcher's own."""
    with suppress(OSError):
        replace_file(run / STATUS_NAME, f"{status} {time.time():.3f}\n")


def status_of(error: BaseException) -> int:
    """The exit status of a process that ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return error.exit_code if isinstance(error, DstError) else 1
