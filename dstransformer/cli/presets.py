"""``dst presets``: list the presets included in the package."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import CommandResult
from dstransformer.io.command import Commands


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst presets``."""
    parser = commands.add_parser("presets", help="list the presets", examples=("dst presets",))
    parser.set_defaults(handler=run)


def run(_: argparse.Namespace) -> CommandResult:
    """List the names of the presets, and the first sentence of each summary."""
    from dstransformer.config import preset_names, preset_summary

    names = preset_names()
    width = max(map(len, names))
    first = {name: preset_summary(name).partition(". ")[0].rstrip(".") for name in names}
    return CommandResult("\n".join(f"{name:<{width}}  {summary}" for name, summary in first.items()))
