"""``dst checkpoints``: list the checkpoints of a run, and check that they are intact."""

from __future__ import annotations

import argparse
import json

from dstransformer.cli.options import CommandResult, folder
from dstransformer.io.command import Commands


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst checkpoints``."""
    parser = commands.add_parser(
        "checkpoints",
        help="list the checkpoints of a run, and check that they are intact",
        examples=("dst checkpoints runs/en-de --verify",),
    )
    parser.add_argument("run", metavar="RUN", type=folder, help="folder that dst train wrote")
    parser.add_argument("--verify", action="store_true", help="compare every file with its hash")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """List checkpoints; the exit status is 1 if one of them is damaged."""
    from dstransformer.training.checkpoints.listing import describe_checkpoints, list_checkpoints

    entries = list_checkpoints(options.run, verify=options.verify)
    if options.json:
        text = json.dumps([entry.to_json() for entry in entries], indent=2)
    else:
        text = describe_checkpoints(entries, verified=options.verify)
    return CommandResult(text, 1 if any(entry.problem for entry in entries) else 0)
