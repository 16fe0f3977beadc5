"""The command ``dst``: one file per command, with its parser and its handler."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``dst``; returns the exit status. Imports happen here, so that Ctrl-C ends them without a traceback.

    Args:
        arguments: The words after ``dst``; None for those of the process.
    """
    set_variables()
    try:
        from dstransformer.cli import program
    except KeyboardInterrupt:
        sys.stderr.write("dst: interrupted\n")
        return 130
    return program.run(arguments)


def set_variables() -> None:
    """Set what PyTorch and OpenMP read when they are loaded, unless the user's environment has set it.

    Threads of GNU OpenMP that wait for work sleep early. By default they first spin 300,000 times, which takes
    processor time from other work on the same core (``python -m benchmarks step --compare spinning``). On a GPU the
    segments of PyTorch's allocator grow, as the size of a batch changes with every update.
    """
    if "torch" in sys.modules:
        return
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if "PYTORCH_ALLOC_CONF" not in os.environ:  # its newer name
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
