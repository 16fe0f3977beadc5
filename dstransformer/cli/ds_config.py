"""``dst ds-config``: print the DeepSpeed JSON of an experiment."""

from __future__ import annotations

import argparse
import json

from dstransformer.cli.options import CommandResult, Commands, add_experiment
from dstransformer.terminal.command import CommandParser


def add_parser(commands: Commands[CommandParser]) -> None:
    """Add the parser of ``dst ds-config``."""
    parser = commands.add_parser("ds-config", help="print the DeepSpeed JSON of an experiment")
    add_experiment(parser)
    parser.add_argument("--world-size", type=int, default=1, help="number of processes (1)")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Compose the DeepSpeed JSON."""
    from dstransformer.config import compose, load_config

    config = load_config(options.preset, options.overrides, options.ds)
    return CommandResult(json.dumps(compose(config, options.world_size), indent=2))
