"""``dst average``: average checkpoints of a run into a bundle."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import CommandResult, folder
from dstransformer.io.command import Commands, exit_on_sigterm


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst average``."""
    parser = commands.add_parser(
        "average",
        help="average checkpoints of a run into a bundle",
        examples=("dst average runs/en-de --last 5 --out averaged",),
    )
    parser.add_argument("run", metavar="RUN", type=folder, help="folder that dst train wrote")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="average the newest N checkpoints (checkpoint.average_last, or fewer if fewer are past the warm-up)",
    )
    which.add_argument(
        "--best", type=int, metavar="N", help="average the N checkpoints with the best validation scores"
    )
    which.add_argument(
        "--steps",
        type=_step,
        nargs="+",
        metavar="STEP",
        help="average the checkpoints of these steps (4000, or the name step-00004000), wherever the warm-up ends",
    )
    parser.add_argument(
        "--include-warmup", action="store_true", help="include checkpoints from before the end of the warm-up"
    )
    parser.add_argument("--out", required=True, type=folder, metavar="BUNDLE", help="folder for the averaged bundle")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing bundle")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
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


def _step(name: str) -> int:
    digits = name.removeprefix("step-")
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{name!r} is not a step: write 4000 or step-00004000, and RUN before --steps")
    return int(digits)
