"""How a command behaves in a shell: safe streams, one line per error, the right exit status."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import logging
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NoReturn

from dstransformer.errors import DstError, StorageError, UserError, shown

#: Exit status of a process whose reader has closed its output.
SIGPIPE_STATUS = 128 + signal.SIGPIPE


#: Maximum choices that an error lists.
_MAX_LISTED = 12


class Stopped(KeyboardInterrupt):
    """A signal that ends the command was received."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


def run_guarded(program: str, run: Callable[[], int], *, reports_errors: bool = True, advice: str = "") -> int:
    """Run a command and return its exit status. An error is reported in one line on stderr.

    A bug keeps its traceback, followed by a line that asks for a report. A signal's status is 128 plus its number.

    Args:
        program: Its name in messages.
        run: The command.
        reports_errors: Whether this process reports the errors that every process of a run raises.
        advice: What the user can do after a signal has ended the command.
    """
    prepare_streams()
    logging.basicConfig(level=logging.WARNING, format=f"{program}: %(message)s", stream=sys.stderr)
    status = 1
    try:
        _check_working_folder()
        status = run()
    except DstError as error:
        _report_error(program, error, reports_errors=reports_errors)
        status = error.exit_code
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        _report(f"{program}: {what}; {advice}" if advice else f"{program}: {what}")
        status = 128 + number
    except BrokenPipeError:
        _discard_stdout()
        status = SIGPIPE_STATUS
    except MemoryError:
        _report(f"{program}: error: there is not enough memory")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        advice = "; raise `ulimit -n`" if error.errno == errno.EMFILE else ""
        failure = StorageError(f"{place}{error.strerror or error}{advice}")
        _report_error(program, failure, reports_errors=True, cause=error)
    except Exception as error:
        if _lacks_memory(error):
            _report(f"{program}: error: there is not enough memory to load a library ({shown(error, quote=False)})")
            return status
        traceback.print_exc()
        what = shown(error, quote=False, limit=200)
        _report(f"{program}: internal error: {type(error).__name__}: {what}; please report it with the lines above")
    return status


def _lacks_memory(error: Exception) -> bool:
    """Whether a library could not be loaded for lack of memory or address space (``ulimit -v``)."""
    return isinstance(error, ImportError) and "failed to map segment" in str(error)


def _check_working_folder() -> None:
    """Refuse a working directory that has been deleted: no relative path leads anywhere, and libraries abort."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the working directory has been deleted: change to another one with `cd`") from None


def exit_on_sigterm() -> None:
    """Make SIGTERM raise :class:`Stopped`, so that cleanup code runs and no partial file stays."""

    def stop(number: int, _: FrameType | None) -> NoReturn:
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[list[int]]:
    """Raise :class:`Stopped` in the block at the first SIGINT, SIGTERM, SIGHUP or SIGUSR1, and ignore further ones.

    Signals that the caller ignores, as nohup does, stay ignored. In another thread than the main one nothing happens.

    Yields:
        The signals received so far, for code that turns the exception into another.
    """
    received: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def stop(number: int, _: FrameType | None) -> NoReturn:
        received.append(number)
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(number)

    with contextlib.suppress(ValueError):  # not the main thread
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def prepare_streams() -> None:
    """Make the standard streams safe to use, even if the shell has closed them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file opened would get this descriptor, and with it what is printed
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for a terminal that lacks a character


def print_text(text: str) -> None:
    """Print to stdout; a reader that has closed it is not an error.

    Raises:
        StorageError: Stdout is closed and there is something to print, or it cannot be written.
    """
    if sys.stdout is None:
        if text:
            raise StorageError("cannot write to stdout: it is closed")
        return
    with printing():
        print(text, end="\n" if text else "")


@contextlib.contextmanager
def printing(note: str = "", *, needed: bool = False) -> Iterator[None]:
    """Print to stdout in the block; a reader that has closed it is not an error.

    Args:
        note: What to add to the error.
        needed: Whether a closed stdout is an error, because the command does nothing but print.

    Raises:
        StorageError: Stdout cannot be written.
    """
    if sys.stdout is None:
        if needed:
            raise StorageError("cannot write to stdout: it is closed")
        with open(os.devnull, "w", encoding="utf-8") as devnull, contextlib.redirect_stdout(devnull):  # noqa: PTH123
            yield
        return
    try:
        try:
            yield
        finally:  # also after the SystemExit of --help
            sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        if not isinstance(error, BrokenPipeError):
            raise StorageError(f"cannot write to stdout: {error.strerror}{note}") from None


def _discard_stdout() -> None:
    """Discard what is buffered and what is printed from here on. Python would try to write it when it exits."""
    devnull = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(devnull.fileno(), sys.stdout.fileno())
    sys.stdout = devnull


class StoreOnce(argparse.Action):
    """Stores the name of an output. Refuses a second value, which would silently replace the first."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._namespace: weakref.ref[argparse.Namespace] | None = None

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """See ``argparse.Action``."""
        again = option is not None and self._namespace is not None and self._namespace() is namespace
        if again and (before := getattr(namespace, self.dest)) != values:
            raise argparse.ArgumentError(self, f"given twice, as {before} and {values}: choose one")
        self._namespace = weakref.ref(namespace)
        setattr(namespace, self.dest, values)


class GroupedHelp(argparse.HelpFormatter):
    """Help that lists commands under headings.

    Attributes:
        groups: The commands of each heading, in the order in which the parser has them.
    """

    groups: ClassVar[Mapping[str, Sequence[str]]] = {}

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        headings = {names[0]: heading for heading, names in self.groups.items()}
        parts = []
        for command in self._iter_indented_subactions(action):
            heading = headings.get(command.dest)
            parts.append(f"\n  {heading}:\n" if heading else "")
            parts.append(self._format_action(command))
        return "".join(parts)


class CommandParser(argparse.ArgumentParser):
    """Reports a usage error in one line, like any other error; ``--help`` shows the usage. No abbreviated options.

    Attributes:
        examples: Command lines that ``--help`` shows at its end.
    """

    def __init__(self, *, examples: Sequence[str] = (), **given: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **given})
        self.examples = examples

    @property
    def commands(self) -> Sequence[str]:
        """The names of its commands."""
        groups = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return [name for group in groups for name in group.choices]

    def format_help(self) -> str:
        """The help, with the examples at its end."""
        text = super().format_help()
        return "\n  ".join([f"{text}\nfor example:", *self.examples]) + "\n" if self.examples else text

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices, with the nearest one."""
        if action.choices is None or value in action.choices:
            return
        names = list(map(str, action.choices))
        near = get_close_matches(str(value), names, n=1)
        listed = f" (choose from {', '.join(names)})" if len(names) <= _MAX_LISTED else ""
        hint = f" (did you mean {near[0]!r}?)" if near else listed
        raise argparse.ArgumentError(action, f"invalid choice: {shown(value)}{hint}")

    def unknown_option(self, words: Sequence[str]) -> tuple[str, str] | None:
        """The first option among the words of a command line that the command does not have, and a hint; None if none.

        The hint is `` (did you mean '--set'?)``, or empty.
        """
        for place, word in enumerate(words):
            for action in self._actions:
                if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                    nested: CommandParser = action.choices[word]
                    return nested.unknown_option(words[place + 1 :])
            option = word.partition("=")[0]
            if word.startswith("--") and word != "--" and option not in self._option_string_actions:
                near = get_close_matches(option, self._option_string_actions, n=1)
                return option, f" (did you mean {near[0]!r}?)" if near else ""
        return None

    def error(self, message: str) -> NoReturn:
        """Raise the error, in one line."""
        raise UserError(f"{shown(message, quote=False, limit=240)}; see `{self.prog} --help`")


def _report_error(program: str, error: DstError, *, reports_errors: bool, cause: BaseException | None = None) -> None:
    """Report an error in one line: on rank 0 if every rank raises it, else on the rank that raised it."""
    if os.environ.get("DST_DEBUG") == "1":
        traceback.print_exception(cause or error)
    text = shown(error, quote=False, limit=1000)
    if error.rank:
        _report(f"{program} (rank {error.rank}): error: {text}")
    elif reports_errors:
        _report(f"{program}: error: {text}")


def _report(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
