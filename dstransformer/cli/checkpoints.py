"""``dst checkpoints``: list the checkpoints of a run, and check that they are intact."""

from __future__ import annotations

import json

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.io.flags import argument, option


class Checkpoints(Command, examples=("dst checkpoints runs/en-de --verify",)):
    """List the checkpoints of a run, and check that they are intact."""

    run: Folder = argument("RUN", "folder that dst train wrote")
    verify: bool = option("compare every file with its hash")
    json: bool = option("print JSON")


@Checkpoints.handler
def run(options: Checkpoints) -> CommandResult:
    """List checkpoints; the exit status is 1 if one of them is damaged."""
    from dstransformer.training.checkpoints.listing import describe_checkpoints, list_checkpoints

    entries = list_checkpoints(options.run, verify=options.verify)
    if options.json:
        text = json.dumps([entry.to_json() for entry in entries], indent=2)
    else:
        text = describe_checkpoints(entries, verified=options.verify)
    return CommandResult(text, 1 if any(entry.problem for entry in entries) else 0)
