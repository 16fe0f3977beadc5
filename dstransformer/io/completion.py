"""Scripts that complete the command line of a program in bash, zsh and fish, by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Any

import shtab

from dstransformer.io.products import MARKER, Kind

#: Prints, for the word $1, the folders that begin with it or lie in one that does, and are of one of the KINDS.
_SEARCH = (
    f'holds() {{ grep -qsE "\\"kind\\": \\"(KINDS)\\"" "$1{MARKER}"; }}; '
    'for outer in "$1"*/; do if holds "$outer"; then echo "${outer%/}"; else '
    'for inner in "$outer"*/; do holds "$inner" && echo "${inner%/}"; done; fi; done'
)


def _folders(name: str, *kinds: Kind) -> dict[str, Any]:
    """Complete folders of these kinds; all folders where there are none of these."""
    name = f"_dst_dir_{name}"  # shtab takes the words of a function with this name for names of files
    search = f"sh -c '{_SEARCH.replace('KINDS', '|'.join(kinds))}' sh"
    return {
        "bash": name,
        "zsh": name,
        "fish": f"({name})",
        "preamble": {
            "bash": f"""
{name}() {{
  local found=$({search} "$1")
  if [ -n "$found" ]; then echo "$found"; else compgen -d -- "$1"; fi
}}""",
            "zsh": f"""
{name}() {{
  local -a found=(${{(f)"$({search} "$PREFIX")"}})
  if (( $#found )); then compadd "$@" -f -- $found; else _files -/; fi
}}""",
            "fish": f"""
function {name}
  set -l found ({search} (commandline -ct))
  if set -q found[1]; printf '%s\\n' $found; else; __fish_complete_directories; end
end""",
        },
    }


_MODELS = _folders("models", "run", "checkpoint", "bundle")
_RUNS = _folders("runs", "run")
_CORPORA = _folders("corpora", "corpus")

#: What completes a value, by its option or by what help calls it.
_COMPLETERS = {
    "--out": shtab.FILE,
    "--run": shtab.DIRECTORY,
    "--corpus": _CORPORA,
    "CORPUS": _CORPORA,
    "RUN": _RUNS,
    **dict.fromkeys(("BUNDLE", "RUN_OR_BUNDLE"), _MODELS),
    **dict.fromkeys(("FILE", "MODEL", "NBEST", "PATH", "PYTHON", "REF", "SPM", "TREES", "KEY"), shtab.FILE),
    **dict.fromkeys(("FOLDER", "DIR", "OUT"), shtab.DIRECTORY),
}


def completion_script(parser: argparse.ArgumentParser, shell: str, values: Mapping[str, Collection[str]]) -> str:
    """Write the script of a program.

    Args:
        parser: The parser of the program, which is changed: build one for this.
        shell: ``bash``, ``zsh`` or ``fish``.
        values: Known values, by the option or by what help calls one. An option takes any number of them.
    """
    _prepare(parser, values)
    return shtab.complete(parser, shell)


def _prepare(parser: argparse.ArgumentParser, values: Mapping[str, Collection[str]]) -> None:
    """Tell shtab what completes the values of a parser and of its commands."""
    for action in parser._actions:
        for name in (*action.option_strings, str(action.metavar)):
            if name in values:
                action.choices = values[name]
                action.nargs = "+" if action.option_strings else action.nargs
            elif name in _COMPLETERS and action.choices is None:
                action.complete = _COMPLETERS[name]  # type: ignore[attr-defined]
                break
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _prepare(command, values)
