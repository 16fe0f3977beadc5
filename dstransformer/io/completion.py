"""Scripts that complete the command line of a program in bash, zsh and fish, by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping

import shtab

#: What completes a value, by what help calls it.
_COMPLETERS = {
    **dict.fromkeys(("FILE", "MODEL", "NBEST", "PATH", "PYTHON", "REF", "SPM", "TREES", "KEY"), shtab.FILE),
    **dict.fromkeys(("BUNDLE", "CORPUS", "DIR", "FOLDER", "OUT", "RUN", "RUN_OR_BUNDLE"), shtab.DIRECTORY),
}


def completion_script(parser: argparse.ArgumentParser, shell: str, values: Mapping[str, Collection[str]]) -> str:
    """Write the script of a program.

    Args:
        parser: The parser of the program, which is changed: build one for this.
        shell: ``bash``, ``zsh`` or ``fish``.
        values: Known values of arguments, by the name of the argument.
    """
    _add_completers(parser, values)
    return shtab.complete(parser, shell)


def _add_completers(parser: argparse.ArgumentParser, values: Mapping[str, Collection[str]]) -> None:
    for action in parser._actions:
        name = str(action.metavar or action.dest).upper()
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _add_completers(command, values)
        elif action.dest in values:
            action.choices = values[action.dest]
        elif name in _COMPLETERS and action.choices is None:
            action.complete = _COMPLETERS[name]  # type: ignore[attr-defined]
