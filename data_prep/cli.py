"""``dst-prep``: parallel text in, sharded corpus out. Here is what it is as a process: signals, streams, status.

This module imports little, so that an interrupt finds its handler in place from the start.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from dstransformer.errors import DstError, StorageError


class Stopped(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP has come; later ones are ignored while the command tidies up."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dst-prep``; returns the process's exit status. Whatever goes wrong is said in one line."""
    _open_streams()
    words = sys.argv[1:] if argv is None else argv
    with _stopped_by_signals() as stops:
        try:
            status = _run(argv)
        except KeyboardInterrupt:
            status = _stopped(stops, words)
        except Exception:  # an interrupt may look like a failed import to what it hits
            if not stops:
                raise
            status = _stopped(stops, words)
        return _flush(status)


def _run(argv: Sequence[str] | None) -> int:
    try:
        from data_prep import commands

        commands.run(argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has had enough
        pass
    except DstError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        return _fail("not enough memory: run the command again, with fewer --workers", StorageError.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = f"{where}{error.strerror or error}; fix it and run the command again"
        return _fail(reason, StorageError.exit_code)
    return 0


def _fail(reason: str, status: int) -> int:
    _say(f"error: {' '.join(reason.splitlines())}")
    return status


def _stopped(stops: list[int], words: Sequence[str]) -> int:
    number = stops[0] if stops else signal.SIGINT
    what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    _say(f"{what}; the same command goes on from the last finished stage" if "build" in words[:1] else what)
    return 128 + number


def _say(text: str) -> None:
    with suppress(OSError):  # nobody listens
        print(f"dst-prep: {text}", file=sys.stderr, flush=True)


def _flush(status: int) -> int:
    """Have stdout empty: Python would report, when it ends, what cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), sys.stdout.fileno())
    return status


def _open_streams() -> None:
    """Have somewhere to write where the caller has closed a stream, and write any character in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _stopped_by_signals() -> Iterator[list[int]]:
    """Raise `Stopped` in the block at the first signal that ends a command; gives the signals that have come."""
    stops: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stops.append(number)
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(number)

    before = {}
    with suppress(ValueError):  # not in the main thread, which signals do not reach
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup wants it
                before[number] = signal.signal(number, stop)
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
