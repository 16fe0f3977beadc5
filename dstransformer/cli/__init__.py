"""The command ``dst``: one file per command, with its parser and its handler."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``dst``; returns the exit status. Imports happen here, so that Ctrl-C ends them without a traceback.

    Args:
        arguments: The words after ``dst``; None for those of the process.
    """
    try:
        from dstransformer.cli import program
    except KeyboardInterrupt:
        sys.stderr.write("dst: interrupted\n")
        return 130
    return program.run(arguments)
