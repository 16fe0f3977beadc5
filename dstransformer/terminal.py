"""What a command owes a shell: safe streams, one line for a mistake, the right exit status."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from dstransformer.errors import DstError, StorageError, UserError, shown

INTERRUPTED = 130

#: Of a process that SIGTERM ends.
ENDED = 143

#: Of a process that SIGPIPE ends: whoever read its output has had enough.
UNREAD = 141


def run_guarded(run: Callable[[], int], *, speaks: bool) -> int:
    """Run a command; returns its exit status, or that of what ended it, which is said on stderr.

    What is no mistake of the user's keeps its traceback, with a line below it that says so.

    Args:
        run: The command.
        speaks: Whether this process says what every process of a run meets.
    """
    prepare_streams()
    logging.basicConfig(level=logging.WARNING, format="dst: %(message)s", stream=sys.stderr)
    status = 1
    try:
        status = run()
    except DstError as error:
        _complain(error, speaks=speaks)
        status = error.exit_code
    except KeyboardInterrupt:
        _report("dst: interrupted")
        status = INTERRUPTED
    except _Ended:
        _report("dst: ended by SIGTERM")
        status = ENDED
    except BrokenPipeError:
        _discard_stdout()
        status = UNREAD
    except MemoryError:
        _report("dst: error: there is not enough memory")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _complain(StorageError(f"{place}{error.strerror or error}"), speaks=True, cause=error)
    except Exception as error:
        traceback.print_exc()
        what = shown(error, quote=False, limit=200)
        _report(f"dst: internal error: {type(error).__name__}: {what}; please report it with the lines above")
    return status


class _Ended(SystemExit):
    """SIGTERM has come."""


def exit_on_sigterm() -> None:
    """Let SIGTERM end this command as an exception does, so that nothing half-written stays."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise _Ended(128 + number)

    signal.signal(signal.SIGTERM, end)


def prepare_streams() -> None:
    """Make standard streams safe to use, whatever the shell made of them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file opened would take its place, and what is printed
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no such character


def say(text: str) -> None:
    """Print the outcome. A reader that has had enough changes nothing about it."""
    if sys.stdout is None:
        if text:
            raise StorageError("cannot write to stdout: it is closed")
        return
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError as error:
        _discard_stdout()
        if not isinstance(error, BrokenPipeError):
            raise StorageError(f"cannot write to stdout: {error.strerror}") from None


def _discard_stdout() -> None:
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as for any other mistake; ``--help`` has the usage. Options are not shortened."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **given})

    def error(self, message: str) -> NoReturn:
        """A wrong option or value."""
        raise UserError(f"{shown(message, quote=False, limit=240)}; see `{self.prog} --help`")


def _complain(error: DstError, *, speaks: bool, cause: BaseException | None = None) -> None:
    """One line. What every rank of a training meets is said by the first; what one of them met, by that one."""
    if os.environ.get("DST_DEBUG") == "1":
        traceback.print_exception(cause or error)
    text = shown(error, quote=False, limit=1000)
    if error.rank:
        _report(f"dst (rank {error.rank}): error: {text}")
    elif speaks:
        _report(f"dst: error: {text}")


def _report(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
