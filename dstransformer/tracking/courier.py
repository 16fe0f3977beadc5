"""Carries records from a run folder's spool to the MLflow store."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.errors import DataError, StorageError
from dstransformer.tracking.location import TrackingState
from dstransformer.tracking.spool import Spool

if TYPE_CHECKING:
    from dstransformer.tracking.mlflow_store import MlflowStore

logger = logging.getLogger(__name__)

# MLflow's own defaults wait for many minutes; records are kept and sent again, so one short try is enough.
MLFLOW_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class StoreUnreachableError(Exception):
    """The store does not answer, or has no run to write to; everything still pending stays in the spool."""


class Courier:
    """Sends what is pending, oldest first. A record that the store refuses stays, and the ones after it go on."""

    def __init__(self, state: TrackingState, run_folder: Path, spool: Spool) -> None:
        self._state = state
        self._run_folder = run_folder
        self._spool = spool
        self._store: MlflowStore | None = None
        self._refused: set[Path] = set()

    @property
    def run_id(self) -> str | None:
        """The run's id, None as long as the store has not made the run."""
        return self._state.run_id if self._store is None else self._store.run_id

    @property
    def refused(self) -> int:
        """How many records the store has refused; they are pending still."""
        return len(self._refused)

    def deliver(self, *, again: bool = True) -> int:
        """Send what is pending and count the records sent; refused records are tried only when ``again``.

        StoreUnreachableError where the store is not there; OSError where the spool cannot be read.
        """
        sent = 0
        paths = [path for path in self._spool.pending() if again or path not in self._refused]
        for files, record in self._spool.batches(paths):
            try:
                self._connect().send(record)
            except Exception as error:
                reason = " ".join(str(error).split()) or repr(error)
                if self._store is None or not self._store.answers():
                    raise StoreUnreachableError(reason) from error
                if not self._refused.issuperset(files):
                    logger.warning("the tracking server refused %r, kept in %s: %s", record["op"], files[0], reason)
                self._refused.update(files)
            else:
                self._spool.drop(files)
                self._refused.difference_update(files)
                sent += len(files)
        return sent

    def _connect(self) -> MlflowStore:
        if self._store is None:
            for name, value in MLFLOW_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            from dstransformer.tracking.mlflow_store import MlflowStore
            from dstransformer.tracking.sqlite_store import prepare_store, sqlite_path

            if path := sqlite_path(self._state.tracking_uri):
                prepare_store(path)
            self._store = MlflowStore(self._state, self._run_folder)
        return self._store


def send_pending(run_folder: Path) -> int:
    """Send what a run could not send, and count the records sent.

    DataError where the folder was never tracked; StorageError where the tracking server does not take everything, or
    the run's folder cannot be written.
    """
    state = TrackingState.load(run_folder)
    if state is None:
        raise DataError(f"{run_folder} holds no tracked run: name a folder that `dst train` wrote with tracking on")
    spool = Spool(run_folder)
    courier = Courier(state, run_folder, spool)
    before = len(spool.pending())
    try:
        sent = courier.deliver()
    except StoreUnreachableError as error:
        left = len(spool.pending())
        raise StorageError(
            f"{run_folder}: {before - left} records sent, {left} still pending, as {state.tracking_uri} "
            f"does not answer ({error}): try again when it does"
        ) from None
    except OSError as error:
        raise StorageError(
            f"cannot forget what was sent, {error.filename}: {error.strerror}; make {run_folder} writable"
        ) from None
    if courier.refused:
        raise StorageError(
            f"{run_folder}: {sent} records sent, {courier.refused} still pending, as {state.tracking_uri} refused them"
        )
    spool.close()
    return sent
