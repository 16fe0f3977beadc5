"""``dst track``: send the pending tracking records of a run to MLflow."""

from __future__ import annotations

from dstransformer.cli.options import Command, CommandResult, Folder, RegisteredName
from dstransformer.errors import without_secrets
from dstransformer.io.flags import argument, option


class Track(Command, examples=("dst track runs/en-de",)):
    """Send pending tracking records of a run."""

    run: Folder = argument("RUN", "run folder")
    register: RegisteredName | None = option("make the run's final bundle a version of this registered model", "NAME")


@Track.handler
def run(options: Track) -> CommandResult:
    """Send the pending records of a run, and register its bundle if asked."""
    from dstransformer.tracking.mlflow.location import TrackingState
    from dstransformer.tracking.mlflow.tracked_run import register_bundle, send_pending

    if options.register is not None:
        return CommandResult(register_bundle(options.run, options.register))
    sent = send_pending(options.run)
    state = TrackingState.load(options.run)
    assert state is not None
    return CommandResult(f"{options.run}: {sent} records sent to {without_secrets(state.tracking_uri)}, none pending")
