"""Lists the benchmarks, or runs one of them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby

from benchmarks.registry import PROGRAMS, Program

NOTES = (
    "Times are those of two cores, about. Multi30k is a folder with {train,val,test_2016}.{en,de}, plain or gzipped;",
    "it is not in this repository. What prepares data takes sentences of the toy grammar without --data MULTI30K.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        usage="%(prog)s [--all | NAME [options]]",
        description=f"{__doc__} NAME --help lists its options.",
    )
    programs = {program.name: program for program in PROGRAMS}
    parser.add_argument("name", nargs="?", choices=programs, metavar="NAME", help="without it: list all benchmarks")
    parser.add_argument("--all", action="store_true", help="run all that need nothing besides the repository")
    chosen = parser.parse_args(given[:1])
    if chosen.all:
        return max(run(program, []) for program in PROGRAMS if not program.needs)
    if chosen.name is None:
        print(format_list())
        return 0
    return run(programs[chosen.name], given[1:])


def run(program: Program, arguments: Sequence[str]) -> int:
    """Run a benchmark; return its exit status."""
    module = import_module(f"benchmarks.{program.module}")
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {program.name}", description=module.__doc__)
    if hasattr(module, "add_options"):
        module.add_options(parser)
    if (smoke := getattr(module, "SMOKE_OPTIONS", None)) is not None:
        parser.add_argument("--smoke", action="store_true", help=f"tiny sizes, to see that it runs: {smoke}")
        arguments = [*arguments, *(smoke.split() if "--smoke" in arguments else ())]
    options = parser.parse_args(arguments, argparse.Namespace(command=shlex.join([program.name, *arguments])))
    if program.topic != "gpu":  # which describes its device itself
        from benchmarks.lib.machine import describe, format_header

        print(format_header(describe(), options.command), flush=True)
    return module.main(options) or 0


def format_list() -> str:
    """The benchmarks by topic, a line each."""
    lines = []
    for topic, programs in groupby(PROGRAMS, key=lambda program: program.topic):
        lines.append(topic)
        for program in programs:
            needs = f"; needs {program.needs}" if program.needs else ""
            lines.append(f"  {program.name:16} {program.takes:>7}  {program.measures}{needs}")
    return "\n".join([*lines, "", *NOTES])


if __name__ == "__main__":
    sys.exit(main())
