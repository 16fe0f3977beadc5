"""How a command behaves in a shell: safe streams, one line per error, the right exit status."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from dstransformer.errors import DstError, StorageError, UserError, shown
from dstransformer.io.progress import be_quiet, say

#: Exit status of a process whose reader has closed its output.
SIGPIPE_STATUS = 128 + signal.SIGPIPE

#: The options of every command; what they set is for :func:`set_verbosity`.
_VERBOSITY = (
    (("-q", "--quiet"), -1, "show results, warnings and errors only"),
    (("-v", "--verbose"), 1, "also show what libraries log, such as DeepSpeed"),
)


class _Terminal(logging.Handler):
    """Says what is logged, above a bar that is drawn meanwhile.

    DeepSpeed logs for a run's log too, and shows here only what is of the root logger's level.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        if record.name != "DeepSpeed" or record.levelno >= logging.root.level:
            try:
                say(self.format(record))
            except Exception:
                self.handleError(record)


class Stopped(KeyboardInterrupt):
    """A signal that ends the command was received."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


def run_guarded(
    program: str, run: Callable[[], int], *, reports_errors: Callable[[], bool] = lambda: True, advice: str = ""
) -> int:
    """Run a command and return its exit status. An error is reported in one line on stderr.

    A bug keeps its traceback, followed by a line that asks for a report. A signal's status is 128 plus its number.

    Args:
        program: Its name in messages.
        run: The command.
        reports_errors: Tells whether this process reports the errors that every process of a run raises.
        advice: What the user can do after a signal has ended the command.
    """
    prepare_streams()
    logging.basicConfig(level=logging.WARNING, format=f"{program}: %(message)s", handlers=[_Terminal()])
    status = 1
    try:
        _check_working_folder()
        status = run()
    except DstError as error:
        _report_error(program, error, reports_errors=reports_errors())
        status = error.exit_code
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        say(f"{program}: {what}; {advice}" if advice else f"{program}: {what}")
        status = 128 + number
    except BrokenPipeError:
        _discard_stdout()
        status = SIGPIPE_STATUS
    except MemoryError:
        say(f"{program}: error: there is not enough memory")
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        advice = "; raise `ulimit -n`" if error.errno == errno.EMFILE else ""
        failure = StorageError(f"{file}{error.strerror or error}{advice}")
        _report_error(program, failure, reports_errors=True, cause=error)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            from dstransformer.io.requirements import how_to_install

            if missing := how_to_install(error.name or ""):
                _report_error(program, UserError(missing), reports_errors=reports_errors(), cause=error)
                return UserError.exit_code
        if isinstance(error, ImportError) and "failed to map segment" in str(error):  # as under `ulimit -v`
            say(f"{program}: error: there is not enough memory to load a library ({shown(error, quote=False)})")
            return status
        traceback.print_exc()
        what = shown(error, quote=False, limit=200)
        say(f"{program}: internal error: {type(error).__name__}: {what}; please report it with the lines above")
    return status


def _check_working_folder() -> None:
    """Refuse a working directory that has been deleted: no relative path leads anywhere, and libraries abort."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the working directory has been deleted: change to another one with `cd`") from None


def set_verbosity(options: argparse.Namespace) -> None:
    """Hide notes and progress after ``-q``; show what is logged at INFO after ``-v``."""
    verbosity = getattr(options, "verbosity", 0)
    be_quiet(verbosity < 0)
    if verbosity > 0:
        logging.root.setLevel(logging.INFO)


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


class Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The commands of a parser; ``choices`` has the parser of each."""

    def add_parser(self, name: str, *, help: str, **settings: Any) -> CommandParser:  # type: ignore[override]
        """Add a command; ``help`` says in some words what it does. The rest is as for :class:`CommandParser`."""
        settings = {"description": f"{help[0].upper()}{help[1:]}.", **settings}
        parser: CommandParser = super().add_parser(name, help=help, **settings)
        return parser


class CommandParser(argparse.ArgumentParser):
    """Reports a usage error in one line, like any other error; ``--help`` shows the usage. No abbreviated options.

    Attributes:
        examples: Command lines that ``--help`` shows at its end.
        commands: Its commands, if it has any.
        headings: Headings in the list of commands, by the name of the first command below each.
        takes_rest: Whether words that it does not know are for another program: they become the value ``rest``.
    """

    def __init__(self, *, examples: Sequence[str] = (), takes_rest: bool = False, **settings: Any) -> None:
        if sys.version_info >= (3, 14):
            settings = {"suggest_on_error": True, "color": False, **settings}
        super().__init__(allow_abbrev=False, **settings)
        self.examples = examples
        self.commands: Commands | None = None
        self.headings: Mapping[str, str] = {}
        self.takes_rest = takes_rest
        for names, value, text in _VERBOSITY if not takes_rest else ():
            self.add_argument(
                *names, dest="verbosity", action="store_const", const=value, default=argparse.SUPPRESS, help=text
            )

    def add_commands(self, metavar: str) -> Commands:
        """Let it have commands, one of which must be given."""
        commands: Any = self.add_subparsers(metavar=metavar, required=True, action=Commands)
        self.commands = commands
        return self.commands

    def format_help(self) -> str:
        """The help, with the headings in its list of commands, and the examples at its end."""
        text = super().format_help()
        for name, heading in self.headings.items():
            text = re.sub(rf"^    {name}\b", rf"\n  {heading}:\n\g<0>", text, count=1, flags=re.MULTILINE)
        return "\n  ".join([f"{text}\nfor example:", *self.examples]) + "\n" if self.examples else text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words of a command line, ``sys.argv`` by default. Those that are left are an error."""
        options, rest = super().parse_known_args(args, namespace)
        late = next((action for action in self._actions if not action.option_strings and action.nargs == "?"), None)
        if late and len(rest) == 1 and rest[0][:1] != "-" and getattr(options, late.dest) == late.default:
            # Before Python 3.12.7 argparse takes an optional argument as left out when an option comes before it.
            try:
                setattr(options, late.dest, self._get_values(late, [rest.pop()]))
            except argparse.ArgumentError as error:
                self.error(str(error))
        if self.takes_rest:
            options.rest, rest = rest, []
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the commands nearest to one that does not exist. argparse lists all, which is more than a line holds."""
        if isinstance(action, Commands) and value not in action.choices:
            from difflib import get_close_matches

            near = [f"`{self.prog} {name}`" for name in get_close_matches(value, action.choices)]
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            kind = str(action.metavar).lower()
            raise UserError(f"{shown(value)} is not a {kind} of {self.prog}: {hint}`{self.prog} --help` lists all")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Raise the error, in one line."""
        raise UserError(f"{shown(message, quote=False, limit=240)}; see `{self.prog} --help`")


def _report_error(program: str, error: DstError, *, reports_errors: bool, cause: BaseException | None = None) -> None:
    """Report an error in one line: on rank 0 if every rank raises it, else on the rank that raised it."""
    if os.environ.get("DST_DEBUG") == "1":
        traceback.print_exception(cause or error)
    text = shown(error, quote=False, limit=1000)
    if error.rank:
        say(f"{program} (rank {error.rank}): error: {text}")
    elif reports_errors:
        say(f"{program}: error: {text}")


#: What help calls values that are names of files, and of folders, in capitals.
_FILES = ("FILE", "MODEL", "NBEST", "PATH", "PYTHON", "REF", "SPM", "TREES", "KEY")
_FOLDERS = ("BUNDLE", "CORPUS", "DIR", "FOLDER", "OUT", "RUN", "RUN_OR_BUNDLE")


def completion_script(parser: argparse.ArgumentParser, shell: str, values: Mapping[str, Collection[str]]) -> str:
    """Write the script with which a shell, by shtab, completes the command line of a program.

    Args:
        parser: The parser of the program, which is changed: build one for this.
        shell: ``bash``, ``zsh`` or ``fish``.
        values: Known values of arguments, by the name of the argument.
    """
    import shtab  # the parser alone must load fast

    _add_completers(parser, values)
    return shtab.complete(parser, shell)


def _add_completers(parser: argparse.ArgumentParser, values: Mapping[str, Collection[str]]) -> None:
    import shtab

    for action in parser._actions:
        name = str(action.metavar or action.dest).upper()
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _add_completers(command, values)
        elif action.dest in values:
            action.choices = values[action.dest]
        elif name in _FILES + _FOLDERS and action.choices is None:
            action.complete = shtab.FILE if name in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
