"""``dst presets``: list the presets included in the package."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import Answer, Commands
from dstransformer.terminal.command import Parser


def add_parser(commands: Commands[Parser]) -> None:
    """Add the parser of ``dst presets``."""
    parser = commands.add_parser("presets", help="list the presets")
    parser.set_defaults(handler=run)


def run(_: argparse.Namespace) -> Answer:
    """List the names and summaries of the presets."""
    from dstransformer.config import preset_names, preset_summary

    names = preset_names()
    width = max(map(len, names))
    return Answer("\n".join(f"{name:<{width}}  {preset_summary(name)}" for name in names))
