"""An MLflow run that holds others: each child run names it in the tag ``mlflow.parentRunId``."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from dstransformer.tracking.events import RunStatus
from dstransformer.tracking.mlflow.location import TrackingState
from dstransformer.tracking.mlflow.outbox import SOURCE_TAG, Record, Spool, unix_ms
from dstransformer.tracking.mlflow.page import public_address
from dstransformer.tracking.mlflow.sender import Courier, StoreUnreachableError

logger = logging.getLogger(__name__)

#: The tag by which MLflow shows a run below its parent.
PARENT_TAG = "mlflow.parentRunId"


class RunGroup:
    """The parent run of several runs. Several processes may open the same group, one at a time.

    What the store does not accept stays in the folder and is sent with the next call. No method raises its errors.

    Args:
        folder: The folder of the group; its ``tracking.json`` holds the ID of the parent run.
        tracking_uri: Address of the store.
        experiment: Name of the MLflow experiment.
    """

    def __init__(self, folder: Path, tracking_uri: str, experiment: str) -> None:
        self._folder = folder
        self._tracking_uri = tracking_uri
        self._spool = Spool(folder)
        state = TrackingState(tracking_uri, experiment).with_stored_run_id(folder)
        self._is_new = not (folder / "tracking.json").exists()
        self._courier = Courier(state, folder, self._spool)
        state.save(folder)

    @property
    def run_id(self) -> str | None:
        """The ID of the parent run; None until the store has created it."""
        return self._courier.run_id

    @property
    def page(self) -> str | None:
        """How to open the group's page in MLflow; None until the store was reached."""
        return self._courier.page

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
            "tags": {SOURCE_TAG: source},
        }
        self._send(start, {"op": "params", "params": dict(params)})

    def log(self, note: str, files: Sequence[str]) -> None:
        """Replace the run's description and upload files of the group's folder."""
        uploads = [{"op": "file", "path": file} for file in files]
        self._send({"op": "tags", "tags": {"mlflow.note.content": note}}, *uploads)

    def finish(self, status: RunStatus) -> None:
        """End the parent run."""
        self._send({"op": "finish", "status": status, "time": unix_ms()})
        self._spool.close()

    def _send(self, *records: Record) -> None:
        try:
            for record in records:
                self._spool.put(record)
            self._courier.deliver()
        except (StoreUnreachableError, OSError) as error:
            logger.warning(
                "%s does not accept the record of %s, which is kept and sent later: %s",
                public_address(self._tracking_uri),
                self._folder,
                error,
            )
