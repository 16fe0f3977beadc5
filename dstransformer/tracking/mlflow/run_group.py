"""Runs within runs: the parent of a group of runs, and the run of ``mlflow run`` around a run or a group."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from dstransformer.errors import without_secrets
from dstransformer.tracking.events import RunStatus
from dstransformer.tracking.mlflow.location import STATE_NAME, TrackingState, is_same_store, sqlite_path
from dstransformer.tracking.mlflow.outbox import Outbox, Record, unix_ms
from dstransformer.tracking.mlflow.sender import Sender, StoreUnreachableError

logger = logging.getLogger(__name__)

#: The tag by which MLflow shows a run below its parent.
PARENT_TAG = "mlflow.parentRunId"

#: The tag in which the start of a group of runs names its command; a run gets that tag from the store.
SOURCE_TAG = "mlflow.source.name"


class RunGroup:
    """The parent run of several runs. Several processes may open the same group, one at a time.

    Records that the store does not accept stay in the folder and are sent with the next call. No method raises errors
    of the store or OSError; a record that the folder does not take is lost.

    Args:
        folder: The folder of the group; its ``tracking.json`` holds the ID of the parent run.
        tracking_uri: Address of the store.
        experiment: Name of the MLflow experiment.
    """

    def __init__(self, folder: Path, tracking_uri: str, experiment: str) -> None:
        self._folder = folder
        self._tracking_uri = tracking_uri
        self._outbox = Outbox(folder)
        state = TrackingState(tracking_uri, experiment).with_stored_run_id(folder)
        self._is_new = not (folder / STATE_NAME).exists()
        self._sender = Sender(state, folder, self._outbox)
        state.save(folder)

    @property
    def run_id(self) -> str | None:
        """The ID of the parent run; None until the store has created it."""
        return self._sender.run_id

    @property
    def page(self) -> str | None:
        """How to open the group's page in MLflow; None until the store was reached."""
        return self._sender.page

    def start(self, name: str, params: Mapping[str, str], source: str) -> None:
        """Create the parent run, or mark it as running again.

        Args:
            name: The run's name in MLflow.
            params: Its parameters.
            source: The command, shown as the run's source.
        """
        start = {
            "op": "start",
            "run_name": name,
            "default_name": name,
            "resume": not self._is_new,
            "key": uuid.uuid4().hex,
            "time": unix_ms(),
            "tags": {SOURCE_TAG: source, **parent_tags(self._tracking_uri)},
        }
        self._send(start, {"op": "params", "params": dict(params)})

    def log(self, note: str, files: Sequence[str], metrics: Mapping[str, float] | None = None) -> None:
        """Replace the run's description, upload files of the group's folder, and log metrics of the whole group."""
        now = unix_ms()
        values = [[name, float(value), now, 0] for name, value in (metrics or {}).items()]
        uploads = [{"op": "file", "path": file} for file in files]
        self._send(
            {"op": "tags", "tags": {"mlflow.note.content": note}},
            *([{"op": "metrics", "metrics": values}] if values else []),
            *uploads,
        )

    def finish(self, status: RunStatus) -> None:
        """End the parent run."""
        self._send({"op": "finish", "status": status, "time": unix_ms()})

    def _send(self, *records: Record) -> None:
        try:
            for record in records:
                self._outbox.put(record)
        except OSError as error:
            logger.warning(
                "cannot write tracking records to %s: %s; MLflow lacks them", self._folder, error.strerror or error
            )
        try:
            self._sender.send()
        except OSError as error:
            logger.warning(
                "cannot read the tracking records of %s: %s; they are sent later",
                self._folder, error.strerror or error,
            )  # fmt: skip
        except StoreUnreachableError as error:
            logger.warning(
                "%s does not accept the record of %s, which is kept and sent later: %s",
                without_secrets(self._tracking_uri),
                self._folder,
                error,
            )


def parent_tags(tracking_uri: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The tag that shows a run below that of the ``mlflow run`` by which it was started; empty without one.

    Args:
        tracking_uri: The store of the run. A parent in another store does not count.
        environment: The environment variables.
    """
    run_id, store = environment.get("MLFLOW_RUN_ID"), environment.get("MLFLOW_TRACKING_URI", "")
    path = sqlite_path(store)
    is_same = is_same_store(store, tracking_uri) if path is None else path == sqlite_path(tracking_uri)
    return {PARENT_TAG: run_id} if run_id and is_same else {}


def is_group(outbox: Outbox) -> bool:
    """Whether the records of an outbox are those of a :class:`RunGroup`."""
    return any(SOURCE_TAG in record.get("tags", ()) for record in outbox.records("start"))
