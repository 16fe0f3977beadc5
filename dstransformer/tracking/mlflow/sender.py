"""Sends the spooled records of a run to the MLflow store."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.errors import DataError, StorageError, UserError, without_secrets
from dstransformer.io.files import hold_lock, storage_errors
from dstransformer.tracking.metrics_log import METRICS_NAME, last_time, logged_metrics
from dstransformer.tracking.mlflow.location import (
    GROUP_LOCK_NAME,
    STATE_NAME,
    TrackingState,
    check_secrets,
    is_same_store,
    sqlite_path,
)
from dstransformer.tracking.mlflow.outbox import FOLDER_NAME, SENT_NAME, Record, Spool
from dstransformer.tracking.mlflow.page import public_address

if TYPE_CHECKING:
    from dstransformer.tracking.mlflow.store import MlflowStore

logger = logging.getLogger(__name__)

# MLflow's default retries take many minutes. Unsent records stay in the spool, so one short attempt is enough.
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
    """The store does not respond or writes nothing, or its run is gone. Pending records stay in the spool."""


class Courier:
    """Sends pending records, oldest first. A refused record stays in the spool, and later ones are still sent."""

    def __init__(self, state: TrackingState, run_folder: Path, spool: Spool) -> None:
        self._state = state
        self._run_folder = run_folder
        self._spool = spool
        self._store: MlflowStore | None = None
        self._refused: set[Path] = set()
        self._warned: set[str] = set()  # operations of which a record was refused and none accepted since
        #: The store does not know the run, and no records are left to create it again.
        self.lost = False
        #: What the registration of the bundle has come to, as a line; None until it was sent.
        self.registered: str | None = None

    @property
    def run_id(self) -> str | None:
        """The MLflow run ID; None until the store has created the run."""
        return self._state.run_id

    @property
    def page(self) -> str | None:
        """How to open the run's page in MLflow; None until the store has created the run."""
        return None if self._store is None else self._store.page

    @property
    def refused(self) -> int:
        """Number of records that the store refused. They are still pending."""
        return len(self._refused)

    def deliver(self, *, retry_refused: bool = True) -> int:
        """Send the pending records.

        Args:
            retry_refused: Also send records that the store refused before.

        Returns:
            The number of records sent.

        Raises:
            StoreUnreachableError: The store does not respond, or writes nothing: its disk is full, for example.
            OSError: The spool cannot be read.
        """
        sent = 0
        if self._spool.pending():
            self.connect()
        paths = [path for path in self._spool.pending() if retry_refused or path not in self._refused]
        for files, record in self._spool.batches(paths):
            store = self._store
            assert store is not None
            try:
                store.send(record)
            except Exception as error:
                if not store.works():
                    self._store = None
                    raise StoreUnreachableError(_reason(error)) from error
                if record["op"] not in self._warned and not self._refused.issuperset(files):
                    logger.warning(
                        "the tracking server refused %r (kept in %s): %s", record["op"], files[0], _reason(error)
                    )
                self._warned.add(record["op"])
                self._refused.update(files)
            else:
                self._warned.discard(record["op"])
                self._state = store.state
                self.registered = store.registered or self.registered
                self._spool.archive(files, record)
                self._refused.difference_update(files)
                sent += len(files)
        return sent

    def connect(self) -> None:
        """Open the store, creating a SQLite file if necessary. If the store has lost the run, respool all its records.

        Raises:
            StoreUnreachableError: The store does not respond.
            OSError: The spool cannot be read.
        """
        if self._store is not None:
            return
        try:
            store = self._open()
            lost = store.has_lost_run()
        except Exception as error:
            raise StoreUnreachableError(_reason(error)) from error
        if lost and (count := self._spool.requeue_sent(logged_metrics(self._run_folder / METRICS_NAME))):
            logger.warning(
                "%s does not know run %s: sending all its %d records again",
                public_address(self._state.tracking_uri), self._state.run_id, count,
            )  # fmt: skip
        self.lost = lost and not self._spool.pending()
        self._store = store

    def _open(self) -> MlflowStore:
        for name, value in MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from dstransformer.tracking.mlflow.sqlite_store import prepare_store, update_artifact_paths
        from dstransformer.tracking.mlflow.store import MlflowStore

        check_secrets(self._state.tracking_uri)
        if path := sqlite_path(self._state.tracking_uri):
            prepare_store(path)
            update_artifact_paths(path)
        return MlflowStore(self._state, self._run_folder)


def _reason(error: BaseException) -> str:
    """A short reason, without passwords and the network libraries' details."""
    text = without_secrets(" ".join(str(error).split()) or repr(error))
    if known := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return known[1]
    if status := re.search(r"too many (\d+) error responses|(\d{3}) Server Error", text):
        return f"it answers with status {status[1] or status[2]}"
    return "timed out" if "timed out" in text else text.partition(" [SQL:")[0]


def crashed_run(run_folder: Path, spool: Spool, state: TrackingState) -> Record | None:
    """The run that trained in this folder before and ended without a report, as in a record: its ID and last time.

    None if there is none in this store.
    """
    try:
        before = TrackingState.load(run_folder)
    except DataError:  # damaged; the run that starts now writes it anew
        return None
    if before is None or before.run_id is None or not spool.lacks_end():
        return None
    if not is_same_store(before.tracking_uri, state.tracking_uri):
        return None
    return {"run_id": before.run_id, "time": _last_sign_of_life(run_folder)}


def _last_sign_of_life(run_folder: Path) -> int:
    """When a run last logged metrics or reported something else, in Unix milliseconds."""
    times = [last_time(run_folder / METRICS_NAME) or 0.0]
    times += [path.stat().st_mtime for path in (run_folder / STATE_NAME, run_folder / SENT_NAME) if path.exists()]
    return int(1000 * max(times))


def send_pending(run_folder: Path) -> int:
    """Send the pending tracking records of a run, or of a group of runs.

    A run that ended without a report is reported as failed. A group keeps its state: its runs may be in training.

    Returns:
        The number of records sent.

    Raises:
        DataError: The run was never tracked, or its records are damaged or gone.
        UserError: The run is being trained.
        StorageError: The tracking server does not accept all records, or the run folder cannot be written.
    """
    return _send(run_folder, None)[0]


def register_bundle(run_folder: Path, name: str) -> str:
    """Make the final bundle of a run a version of a registered model. Sends all pending records.

    Returns:
        A line that says which version it is, and why it is the champion or not.

    Raises:
        DataError: The run has no final bundle; and as :func:`send_pending`.
        UserError, StorageError: As :func:`send_pending`.
    """
    return _send(run_folder, name)[1] or name


def _send(run_folder: Path, register: str | None) -> tuple[int, str | None]:
    state = _load_state(run_folder)
    spool = Spool(run_folder)
    is_group = spool.is_group()
    with hold_lock(
        run_folder / (GROUP_LOCK_NAME if is_group else ".lock"),
        f"another process ({{owner}}) sends the records of {run_folder}, a training or `dst track`: wait for it",
        keep=True,
    ):
        with storage_errors(run_folder, full="free some space and run the same command again"):
            if spool.lacks_end() and not is_group:  # nothing says whether a run of the group is being trained
                spool.put({"op": "crash", "time": _last_sign_of_life(run_folder)})
            if register is not None:
                if "bundle" not in spool.operations():
                    raise DataError(
                        f"{run_folder} has no final bundle to register yet: finish the run with `dst train`"
                    )
                spool.put({"op": "register", "name": register, "key": None})
        courier = Courier(state, run_folder, spool)
        return _send_pending(state, run_folder, spool, courier), courier.registered


def _load_state(run_folder: Path) -> TrackingState:
    if not run_folder.exists():
        raise DataError(f"{run_folder} does not exist: name the folder of a run that `dst train` wrote")
    pending = run_folder / FOLDER_NAME
    if os.path.lexists(pending) and not pending.is_dir():
        raise DataError(f"{pending} is not a folder, as it should be to hold the pending records: move it away")
    state = TrackingState.load(run_folder)
    if state is not None:
        return state
    if pending.is_dir():
        raise DataError(
            f"{run_folder / STATE_NAME}, which names the tracking server, is missing: restore it from a copy, or "
            "resume the run with `dst train`, which writes it and sends the pending records"
        )
    raise DataError(
        f"{run_folder} is not the folder of a tracked run: name one that `dst train` wrote with tracking enabled"
    )


def _send_pending(state: TrackingState, run_folder: Path, spool: Spool, courier: Courier) -> int:
    before = len(spool.pending())
    address = public_address(state.tracking_uri)
    if state.run_id is None and not before:
        raise DataError(
            f"{run_folder}: {address} has never received this run, and no records are pending in {FOLDER_NAME}: "
            f"restore that folder from a copy; the metrics are still in {METRICS_NAME}"
        )
    path = sqlite_path(state.tracking_uri)
    if path and path.is_dir():
        raise StorageError(f"the tracking store {path} is a folder: move it away, and `dst track` creates a new store")
    if path and not path.exists():
        logger.warning("the tracking store %s does not exist: creating it", path)
    try:
        if path:
            courier.connect()  # also repairs a moved or broken store when nothing is pending
        sent = courier.deliver()
    except StoreUnreachableError as error:
        left = len(spool.pending())
        raise StorageError(
            f"{run_folder}: {max(0, before - left - spool.damaged)} records sent, {left} still pending: "
            f"{address} does not accept them ({error}){'' if _is_settings(error) else '; try again later'}"
        ) from None
    except OSError as error:
        raise StorageError(
            f"cannot delete sent records, {error.filename}: {error.strerror}; make {run_folder} writable"
        ) from None
    if courier.lost:
        raise DataError(
            f"{address} does not know run {state.run_id}, and no records are left to create it again: restore the "
            f"store, or {run_folder / SENT_NAME}, from a copy"
        )
    if courier.refused:
        raise StorageError(
            f"{run_folder}: {sent} records sent, {courier.refused} still pending: "
            f"{address} refused them; the warnings above say why"
        )
    spool.close()
    if damaged := len(spool.broken()):
        raise StorageError(
            f"{run_folder}: {sent} records sent; {damaged} damaged ones are kept in {FOLDER_NAME} as .broken: restore "
            "them from a copy, or delete them"
        )
    return sent


def _is_settings(error: StoreUnreachableError) -> bool:
    """Whether a setting is at fault rather than the store, so that trying again does not help."""
    return isinstance(error.__cause__, UserError | ValueError | ImportError)
