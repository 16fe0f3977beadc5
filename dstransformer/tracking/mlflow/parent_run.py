"""The run above other runs in MLflow: that of ``mlflow run``, or one that a command opens for the runs it starts.

A store that does not accept the run of a group is a warning: the runs below it are tracked as if it were not there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.errors import without_secrets
from dstransformer.tracking.events import RunStatus
from dstransformer.tracking.mlflow.location import artifact_location, is_same_store
from dstransformer.tracking.mlflow.page import page_instructions
from dstransformer.tracking.mlflow.sender import preparing, short_reason

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)


def parent_tags(tracking_uri: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The tag that shows a run below the one that ``MLFLOW_RUN_ID`` names; empty without one.

    A parent in another store than the run, by ``MLFLOW_TRACKING_URI``, is only a warning.
    """
    run_id, store = environment.get("MLFLOW_RUN_ID"), environment.get("MLFLOW_TRACKING_URI", "")
    is_same = is_same_store(store, tracking_uri)
    if run_id and not is_same:
        logger.warning("MLFLOW_RUN_ID is not used: MLFLOW_TRACKING_URI does not name %s", without_secrets(tracking_uri))
    return {"mlflow.parentRunId": run_id} if run_id and is_same else {}


def open_group(
    tracking_uri: str, experiment: str, known: str | None, *, name: str, params: Mapping[str, str], source: str
) -> str | None:
    """Create the run of a group, or mark it as running again. Runs started with it in ``MLFLOW_RUN_ID`` are below it.

    MLflow shows the command ``source`` as its source. ``known`` is its ID if it was created before.

    Returns:
        Its ID, ``known`` or new; None or ``known``, after a warning, if the store does not accept it.
    """
    with _client(tracking_uri) as client:
        stored, location = client.get_experiment_by_name(experiment), artifact_location(tracking_uri)
        number = stored.experiment_id if stored else client.create_experiment(experiment, location)
        if known is None or not client.search_runs([number], f"attributes.run_id = '{known}'", max_results=1):
            tags = {"mlflow.source.name": source, **parent_tags(tracking_uri)}
            known = str(client.create_run(number, tags=tags, run_name=name).info.run_id)
            for key, value in params.items():
                client.log_param(known, key, value)
        client.update_run(known, status="RUNNING")
    return known


def close_group(
    tracking_uri: str,
    run_id: str,
    *,
    note: str,
    files: Sequence[Path],
    status: RunStatus | None,
    metrics: Mapping[str, float] | None = None,
) -> str | None:
    """Replace the description and the files of a group's run, log metrics, and end it.

    The description ``note`` is in Markdown. A run of which ``status`` is None has not ended.

    Returns:
        How to open its page in MLflow; None, after a warning, if the store does not accept the result.
    """
    with _client(tracking_uri) as client:
        client.set_tag(run_id, "mlflow.note.content", note)
        for key, value in (metrics or {}).items():
            client.log_metric(run_id, key, value)
        for file in files:
            client.log_artifact(run_id, str(file))
        if status is not None:
            client.set_terminated(run_id, status.upper())
        return page_instructions(tracking_uri, client.get_run(run_id).info.experiment_id, run_id)
    return None


@contextmanager
def _client(tracking_uri: str) -> Iterator[MlflowClient]:
    """A client of the store. An error in the block ends it with a warning."""
    try:
        with preparing(tracking_uri):
            from mlflow.tracking import MlflowClient

            yield MlflowClient(tracking_uri)
    except Exception as error:
        logger.warning(
            "%s does not accept the run of the group, give the same command again later: %s",
            without_secrets(tracking_uri), short_reason(error),
        )  # fmt: skip
