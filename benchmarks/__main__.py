"""``python -m benchmarks [NAME …]``: runs the named benchmarks, or all that do not need a GPU."""

from __future__ import annotations

import argparse
from importlib import import_module

from benchmarks.lib.machine import describe

NAMES = (
    "data.plan",
    "data.windows",
    "data.loading",
    "data.padding",
    "training.startup",
    "data.corpus",
    "data.cluster",
    "training.engine",
    "training.checkpoint",
    "training.allocator",
    "training.spinning",
    "resilience.outage",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or NAMES
    print(describe())
    for name in names:
        print(f"\n== {name}")
        import_module(f"benchmarks.{name}").main()


main()
