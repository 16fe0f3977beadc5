"""The command ``dst``: one file per command, with its parser and its handler."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``dst``; returns the exit status. Imports happen here, so that Ctrl-C ends them without a traceback.

    Args:
        arguments: The words after ``dst``; None for those of the process.
    """
    limit_spinning()
    try:
        from dstransformer.cli import program
    except KeyboardInterrupt:
        sys.stderr.write("dst: interrupted\n")
        return 130
    return program.run(arguments)


def limit_spinning() -> None:
    """Make threads of GNU OpenMP that wait for work sleep early, unless the user's environment sets how they wait.

    By default they first spin 300,000 times, which takes processor time from other work on the same core
    (``python -m benchmarks spinning``). OpenMP reads the variable when PyTorch loads it.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
