"""The entry point of ``dst-prep``. It imports little, so that signals are handled from the start."""

import sys
from collections.abc import Sequence

from dstransformer.errors import DstError
from dstransformer.io.command import Stopped, run_guarded, stopped_by_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dst-prep`` and return the exit status; ``argv`` replaces the command line."""
    words = sys.argv[1:] if argv is None else argv
    command = next((word for word in words if not word.startswith("-")), "")
    advice = "the same command resumes from what is finished" if command in ("build", "mono") else ""
    with stopped_by_signals() as received:
        return run_guarded("dst-prep", lambda: _run(words, received), advice=advice)


def _run(words: Sequence[str], received: Sequence[int]) -> int:
    try:
        from data_prep.cli import commands

        commands.run(words)
    except MemoryError:
        raise DstError(
            "not enough memory: run the command again, with fewer --workers, or more memory for each worker"
        ) from None
    except Exception:
        if received:  # an interrupt may surface as another exception, such as a failed import
            raise Stopped(received[0]) from None
        raise
    return 0
