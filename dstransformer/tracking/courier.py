"""Carries records from a run folder's spool to the MLflow store."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.errors import DataError, StorageError
from dstransformer.tracking.jsonl import METRICS_NAME, logged_metrics
from dstransformer.tracking.location import TrackingState, sqlite_path
from dstransformer.tracking.page import public_address
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
        return self._state.run_id

    @property
    def page(self) -> str | None:
        """How to open the run's page, None as long as the store has not made the run."""
        return None if self._store is None else self._store.page

    @property
    def refused(self) -> int:
        """How many records the store has refused; they are pending still."""
        return len(self._refused)

    def deliver(self, *, again: bool = True) -> int:
        """Send what is pending and count the records sent; refused records are tried only when ``again``.

        StoreUnreachableError where the store is not there; OSError where the spool cannot be read.
        """
        sent = 0
        if self._spool.pending():
            self.connect()
        paths = [path for path in self._spool.pending() if again or path not in self._refused]
        for files, record in self._spool.batches(paths):
            store = self._store
            assert store is not None
            try:
                store.send(record)
            except Exception as error:
                if not store.answers():
                    self._store = None
                    raise StoreUnreachableError(_reason(error)) from error
                if not self._refused.issuperset(files):
                    logger.warning(
                        "the tracking server refused %r, kept in %s: %s", record["op"], files[0], _reason(error)
                    )
                self._refused.update(files)
            else:
                self._state = store.state
                self._spool.archive(files, record)
                self._refused.difference_update(files)
                sent += len(files)
        return sent

    def connect(self) -> None:
        """Open the store, a SQLite file being made where there is none; where it has lost the run, send that again.

        StoreUnreachableError where the store is not there; OSError where the spool cannot be read.
        """
        if self._store is not None:
            return
        try:
            store = self._open()
            lost = store.has_lost_run()
        except Exception as error:
            raise StoreUnreachableError(_reason(error)) from error
        if lost and (count := self._spool.restore(logged_metrics(self._run_folder / METRICS_NAME))):
            logger.warning(
                "%s does not know run %s: it is sent again, %d records",
                public_address(self._state.tracking_uri), self._state.run_id, count,
            )  # fmt: skip
        self._store = store

    def _open(self) -> MlflowStore:
        for name, value in MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from dstransformer.tracking.mlflow_store import MlflowStore
        from dstransformer.tracking.sqlite_store import follow_moved_artifacts, prepare_store

        if path := sqlite_path(self._state.tracking_uri):
            if path.is_dir():
                raise StorageError(f"{path} is a folder: move it")
            prepare_store(path)
            follow_moved_artifacts(path)
        return MlflowStore(self._state, self._run_folder)


def _reason(error: BaseException) -> str:
    """Why in a few words, where the network's libraries take a paragraph."""
    text = " ".join(str(error).split()) or repr(error)
    if known := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return known[1]
    return "no answer in time" if "timed out" in text else text


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
        if sqlite_path(state.tracking_uri):
            courier.connect()  # a store that was moved or is broken is put right, whether anything is pending or not
        sent = courier.deliver()
    except StoreUnreachableError as error:
        left = len(spool.pending())
        raise StorageError(
            f"{run_folder}: {max(0, before - left)} records sent, {left} still pending, as "
            f"{public_address(state.tracking_uri)} does not take them ({error}): try again when it does"
        ) from None
    except OSError as error:
        raise StorageError(
            f"cannot forget what was sent, {error.filename}: {error.strerror}; make {run_folder} writable"
        ) from None
    if courier.refused:
        raise StorageError(
            f"{run_folder}: {sent} records sent, {courier.refused} still pending, as "
            f"{public_address(state.tracking_uri)} refused them"
        )
    spool.close()
    return sent
