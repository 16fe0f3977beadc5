"""``python -m benchmarks [NAME …]``: runs the benchmarks named, or all that need no GPU."""

from __future__ import annotations

import argparse
import platform
from importlib import import_module

import torch

NAMES = ("plan", "loading", "padding", "startup", "corpus", "engine", "checkpoint", "allocator")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or NAMES
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name in names:
        print(f"\n== {name}")
        import_module(f"benchmarks.{name}").main()


main()
