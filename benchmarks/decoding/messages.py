"""How many placeholders, tags and accelerators of messages survive translation, of those that references have."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from benchmarks.lib.tables import format_table
from data_prep.stages.marks import accelerators, placeholders

SMOKE_OPTIONS = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--src", type=Path, required=True, help="the messages, a line each")
    parser.add_argument("--ref", type=Path, required=True, help="their translations")
    parser.add_argument("outputs", type=Path, nargs="+", metavar="OUTPUT", help="those of systems")


def main(options: argparse.Namespace) -> None:
    sources, references = lines(options.src), lines(options.ref)
    rows = []
    for path in options.outputs:
        expected, kept, invented, exact = Counter[str](), Counter[str](), 0, Counter[bool]()
        for src, ref, output in zip(sources, references, lines(path), strict=True):
            wanted = marks(src)
            if wanted != marks(ref):
                continue
            found = marks(output)
            for mark, count in wanted.items():
                expected[kind(mark)] += count
                kept[kind(mark)] += min(count, found[mark])
            invented += (found - wanted).total()
            if wanted:
                exact[found == wanted] += 1
        if not expected:
            continue
        shares = [f"{kept[name] / expected[name]:.1%} of {expected[name]:,}" for name in sorted(expected)]
        rows.append(f"{path.name} | {' | '.join(shares)} | {exact[True] / exact.total():.1%} | {invented:,}")
    if not rows:
        raise SystemExit(f"{options.src} has no placeholder that {options.ref} has too")
    print(format_table(f"output | {': | '.join(sorted(expected))}: | messages with all: | invented:", rows))


def lines(path: Path) -> list[str]:
    """The lines of a file; some have characters that end lines elsewhere."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def marks(text: str) -> Counter[str]:
    """The placeholders and tags of a text; any accelerator is ``_F``, whatever its character."""
    return placeholders(text) + Counter({"_F": accelerators(text)})


def kind(mark: str) -> str:
    """Of a placeholder, what looks like it."""
    if mark[0] == "%" and mark[1:].isdigit():
        return "%1"
    return {"%": "%s", "{": "{0}", "$": "$name", "<": "<b>", "_": "_F"}[mark[0]]
