"""Sends the outbox of a run to the MLflow store."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.errors import without_secrets
from dstransformer.tracking.mlflow.location import (
    TrackingState,
    check_database,
    check_secrets,
    create_sqlite,
    is_database,
    sqlite_path,
)
from dstransformer.tracking.mlflow.outbox import OUTBOX_NAME, Outbox, RecordBatch

if TYPE_CHECKING:
    from dstransformer.tracking.mlflow.store import MlflowStore

logger = logging.getLogger(__name__)

# MLflow's default retries take many minutes. Unsent records stay in the outbox, so one short attempt is enough.
MLFLOW_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_UV_AUTO_DETECT": "false",  # a project in the working folder is not the model's
}


class StoreUnreachableError(Exception):
    """The store does not respond, cannot write, or has lost the run. Records stay pending."""


class Sender:
    """Sends pending records, oldest first. A refused record stays pending, and later ones are still sent."""

    def __init__(self, state: TrackingState, run_folder: Path, outbox: Outbox) -> None:
        #: Its ``run_id`` is None until the store has created the run.
        self.state = state
        self.outbox = outbox
        #: The number of records sent.
        self.sent = 0
        self._run_folder = run_folder
        self._store: MlflowStore | None = None
        self._refused: set[int] = set()  # offsets of refused records
        self._warned: set[str] = set()  # operations of which a record was refused and none accepted since
        #: The store does not know the run, and no records are left to create it again.
        self.lost = False
        #: The result of registering the bundle, as a line; None until that was sent.
        self.registered: str | None = None

    @property
    def page(self) -> str | None:
        """How to open the run's page in MLflow; None until the store has created the run."""
        return None if self._store is None else self._store.page

    def send(self, *, retry_refused: bool = True) -> None:
        """Send the pending records, those that the store refused before only if ``retry_refused`` is true.

        Raises:
            StoreUnreachableError: The store does not respond, or cannot write, for example because its disk is full.
            DataError: The outbox has a newer format.
            OSError: The outbox cannot be read.
        """
        if not self.outbox.has_pending():
            return
        store = self.connect()
        with quiet_libraries():
            for batch in self.outbox.batches(retry_refused=retry_refused):
                self._send(store, batch)

    def _send(self, store: MlflowStore, batch: RecordBatch) -> None:
        operation = batch.record["op"]
        try:
            store.send(batch.record)
        except Exception as error:
            if not store.accepts_writes():
                self._store = None
                raise StoreUnreachableError(short_reason(error)) from error
            if operation not in self._warned and not (batch.offsets and self._refused.issuperset(batch.offsets)):
                logger.warning(
                    "the tracking server refused %r (kept in %s): %s",
                    operation, self._run_folder / OUTBOX_NAME, short_reason(error),
                )  # fmt: skip
            self._warned.add(operation)
            self._refused.update(batch.offsets)
            self.outbox.mark(batch, accepted=False)
            return
        self._warned.discard(operation)
        self.state = store.state
        self.registered = store.registered or self.registered
        self.outbox.mark(batch, accepted=True)
        self.sent += max(1, len(batch.offsets))

    def connect(self) -> MlflowStore:
        """Open the store, creating a SQLite file if necessary. If the store has lost the run, rewind the outbox.

        Raises:
            StoreUnreachableError: The store does not respond.
            DataError: The outbox has a newer format.
            OSError: The outbox cannot be read.
        """
        if self._store is not None:
            return self._store
        try:
            with preparing(self.state.tracking_uri):
                from dstransformer.tracking.mlflow.store import MlflowStore

                store = MlflowStore(self.state, self._run_folder)
                lost = store.has_lost_run()
        except Exception as error:
            raise StoreUnreachableError(short_reason(error)) from error
        if lost and (count := self.outbox.rewind()):
            logger.warning(
                "%s does not know run %s: sending all its %d records again",
                without_secrets(self.state.tracking_uri), self.state.run_id, count,
            )  # fmt: skip
        self.lost = lost and not self.outbox.has_pending()
        self._store = store
        return store


def prepare_mlflow() -> None:
    """Set what MLflow reads from the environment, unless the user has set it."""
    for name, value in MLFLOW_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextmanager
def preparing(tracking_uri: str) -> Iterator[None]:
    """Make a store ready for MLflow, which is quiet in the block: its settings, its SQLite file, a check of its schema.

    Raises:
        ConfigError: The address lacks its password.
        UnusableStoreError, Exception: See ``check_database`` and ``create_sqlite``.
    """
    prepare_mlflow()
    check_secrets(tracking_uri)
    with quiet_libraries():
        if path := sqlite_path(tracking_uri):
            create_sqlite(path)
        if is_database(tracking_uri):
            check_database(tracking_uri)
        yield


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the libraries of the store: the sender reports their failures itself, once and in one line."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "sqlalchemy", "urllib3")]
    levels = [library.level for library in loggers]
    for library in loggers:
        library.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for library, level in zip(loggers, levels, strict=True):
            library.setLevel(level)


def short_reason(error: BaseException) -> str:
    """A short reason, without passwords and the network libraries' details."""
    text = without_secrets(" ".join(str(error).split()) or repr(error))
    if known := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return known[1]
    if status := re.search(r"too many (\d+) error responses|(\d{3}) Server Error|failed with error code (\d{3})", text):
        return f"it answers with status {next(filter(None, status.groups()))}"
    return "timed out" if "timed out" in text else text.partition(" [SQL:")[0]
