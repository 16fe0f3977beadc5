"""``dst ds-config``: print the DeepSpeed JSON of an experiment."""

from __future__ import annotations

import argparse
import json

from dstransformer.cli.options import Answer, Commands, add_experiment
from dstransformer.terminal.command import Parser


def add_parser(commands: Commands[Parser]) -> None:
    """Add the parser of ``dst ds-config``."""
    parser = commands.add_parser("ds-config", help="print the DeepSpeed JSON of an experiment")
    add_experiment(parser)
    parser.add_argument("--world-size", type=int, default=1, help="number of processes (1)")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> Answer:
    """Compose the DeepSpeed JSON."""
    from dstransformer.config import compose, load_config

    config = load_config(options.preset, options.overrides, options.ds)
    return Answer(json.dumps(compose(config, options.world_size), indent=2))
