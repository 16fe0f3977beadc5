"""``dst checkpoints`` and ``dst average``: list and check the checkpoints of a run, and average some into a bundle."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Annotated

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import argument, option


class Checkpoints(Command, examples=("dst checkpoints runs/en-de --verify",)):
    """List the checkpoints of a run, and check that they are intact."""

    run: Folder = argument("RUN", "folder that dst train wrote")
    verify: bool = option("compare every file with its hash")
    json: bool = option("print JSON")


@Checkpoints.handler
def list_run(options: Checkpoints) -> CommandResult:
    """List checkpoints; the exit status is 1 if one of them is damaged."""
    from dstransformer.training.checkpoints.listing import describe_checkpoints, list_checkpoints

    entries = list_checkpoints(options.run, verify=options.verify)
    if options.json:
        text = json.dumps([entry.to_json() for entry in entries], indent=2)
    else:
        text = describe_checkpoints(entries, verified=options.verify)
    return CommandResult(text, 1 if any(entry.problem for entry in entries) else 0)


def _step(name: str) -> int:
    digits = name.removeprefix("step-")
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{name!r} is not a step: write 4000 or step-00004000, and RUN before --steps")
    return int(digits)


class Average(Command, examples=("dst average runs/en-de --last 5 --out averaged",)):
    """Average checkpoints of a run into a bundle."""

    run: Folder = argument("RUN", "folder that dst train wrote")
    last: int | None = option(
        "average the newest N checkpoints (checkpoint.average_last, or fewer if fewer are past the warm-up)",
        "N",
        one_of="which",
    )
    best: int | None = option("average the N checkpoints with the best validation scores", "N", one_of="which")
    steps: Sequence[Annotated[int, _step]] | None = option(
        "average the checkpoints of these steps (4000, or the name step-00004000), wherever the warm-up ends",
        "STEP",
        one_of="which",
    )
    include_warmup: bool = option("include checkpoints from before the end of the warm-up")
    out: Folder = option("folder for the averaged bundle", "BUNDLE", required=True)
    overwrite: bool = option("replace an existing bundle")


@Average.handler
def run(options: Average) -> CommandResult:
    """Average checkpoints."""
    from dstransformer.training.checkpoints.averaging import average_run

    exit_on_sigterm()
    checkpoints = average_run(
        options.run,
        options.out,
        last=options.last,
        best=options.best,
        steps=options.steps,
        include_warmup=options.include_warmup,
        overwrite=options.overwrite,
    )
    steps = ", ".join(str(checkpoint.state.step) for checkpoint in checkpoints)
    return CommandResult(f"{options.out}: the average of steps {steps}")
