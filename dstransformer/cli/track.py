"""``dst track``: send the pending tracking records of a run to MLflow."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import CommandResult, folder, registered_name
from dstransformer.errors import without_secrets
from dstransformer.io.command import Commands


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst track``."""
    parser = commands.add_parser(
        "track",
        help="send pending tracking records of a run",
        examples=("dst track runs/en-de",),
    )
    parser.add_argument("run", metavar="RUN", type=folder, help="run folder")
    parser.add_argument(
        "--register",
        type=registered_name,
        metavar="NAME",
        help="make the run's final bundle a version of this registered model",
    )
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Send the pending records of a run, and register its bundle if asked."""
    from dstransformer.tracking.mlflow.location import TrackingState
    from dstransformer.tracking.mlflow.tracked_run import register_bundle, send_pending

    if options.register is not None:
        return CommandResult(register_bundle(options.run, options.register))
    sent = send_pending(options.run)
    state = TrackingState.load(options.run)
    assert state is not None
    return CommandResult(f"{options.run}: {sent} records sent to {without_secrets(state.tracking_uri)}, none pending")
