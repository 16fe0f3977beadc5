"""Runs a Python program in a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
from collections.abc import Mapping
from pathlib import Path

from support.processes.forks import Fork, environment
from support.processes.launching import marked

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_in_terminal(*program: str, columns: int = 80, extra: Mapping[str, str] | None = None) -> str:
    """Run a program to its end, as ``Fork`` takes it, and return all that it wrote on the terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = environment({"TERM": "xterm", **(extra or {})})
    for name in {"COLUMNS", "NO_COLOR", "FORCE_COLOR"} - (extra or {}).keys():
        variables.pop(name, None)
    with marked(variables) as own:
        process = Fork(program, own, streams=[Path(os.ttyname(its))] * 3)
        written = b""
        try:
            while True:
                ended = process.poll() is not None
                if select.select([ours], [], [], 0.0 if ended else 0.05)[0]:
                    written += os.read(ours, 65536)
                elif ended:
                    break
        finally:
            process.close()
            os.close(ours)
            os.close(its)
    return written.decode(errors="replace")


def visible(written: str) -> list[str]:
    """The lines that were written on a terminal, without what colours them; each state of one that was redrawn."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", _CONTROL.sub("", written))]
