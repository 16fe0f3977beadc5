"""Sends the outbox of a run, or of a group of runs, to the MLflow store."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.errors import DataError, StorageError, UserError, without_secrets
from dstransformer.io.files import hold_lock, storage_errors
from dstransformer.tracking.events import RunStatus
from dstransformer.tracking.metrics_log import METRICS_NAME, last_time
from dstransformer.tracking.mlflow.location import (
    GROUP_LOCK_NAME,
    STATE_NAME,
    TrackingState,
    check_secrets,
    is_same_store,
    sqlite_path,
)
from dstransformer.tracking.mlflow.outbox import CURSOR_NAME, OUTBOX_NAME, SOURCE_TAG, Batch, Outbox
from dstransformer.tracking.mlflow.page import public_address
from dstransformer.tracking.mlflow.pending_folder import PENDING_NAME
from dstransformer.tracking.mlflow.records import Record, unix_ms

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
    """The store does not respond or writes nothing, or its run is gone. Records stay pending."""


class Sender:
    """Sends pending records, oldest first. A refused record stays pending, and later ones are still sent."""

    def __init__(self, state: TrackingState, run_folder: Path, outbox: Outbox) -> None:
        self._state = state
        self._run_folder = run_folder
        self._outbox = outbox
        self._store: MlflowStore | None = None
        self._refused: set[int] = set()  # offsets of the records that were refused
        self._warned: set[str] = set()  # operations of which a record was refused and none accepted since
        #: The store does not know the run, and no records are left to create it again.
        self.lost = False
        #: The result of registering the bundle, as a line; None until that was sent.
        self.registered: str | None = None

    @property
    def run_id(self) -> str | None:
        """The MLflow run ID; None until the store has created the run."""
        return self._state.run_id

    @property
    def page(self) -> str | None:
        """How to open the run's page in MLflow; None until the store has created the run."""
        return None if self._store is None else self._store.page

    def send(self, *, retry_refused: bool = True) -> int:
        """Send the pending records.

        Args:
            retry_refused: Also send records that the store refused before.

        Returns:
            The number of records sent.

        Raises:
            StoreUnreachableError: The store does not respond, or writes nothing: its disk is full, for example.
            DataError: The outbox has a newer format.
            OSError: The outbox cannot be read.
        """
        if not self._outbox.has_pending():
            return 0
        self.connect()
        with quiet_libraries():
            return sum(map(self._send, self._outbox.batches(retry_refused=retry_refused)))

    def _send(self, batch: Batch) -> int:
        """Send a batch. Returns the number of records sent."""
        store, operation = self._store, batch.record["op"]
        assert store is not None
        try:
            store.send(batch.record)
        except Exception as error:
            if not store.works():
                self._store = None
                raise StoreUnreachableError(_reason(error)) from error
            if operation not in self._warned and not (batch.offsets and self._refused.issuperset(batch.offsets)):
                logger.warning(
                    "the tracking server refused %r (kept in %s): %s",
                    operation, self._run_folder / OUTBOX_NAME, _reason(error),
                )  # fmt: skip
            self._warned.add(operation)
            self._refused.update(batch.offsets)
            self._outbox.mark_refused(batch)
            return 0
        self._warned.discard(operation)
        self._state = store.state
        self.registered = store.registered or self.registered
        self._outbox.mark_sent(batch)
        return batch.count

    def connect(self) -> None:
        """Open the store, creating a SQLite file if necessary. If the store has lost the run, rewind the outbox.

        Raises:
            StoreUnreachableError: The store does not respond.
            DataError: The outbox has a newer format.
            OSError: The outbox cannot be read.
        """
        if self._store is not None:
            return
        try:
            store, lost = self._open()
        except Exception as error:
            raise StoreUnreachableError(_reason(error)) from error
        if lost and (count := self._outbox.rewind()):
            logger.warning(
                "%s does not know run %s: sending all its %d records again",
                public_address(self._state.tracking_uri), self._state.run_id, count,
            )  # fmt: skip
        self.lost = lost and not self._outbox.has_pending()
        self._store = store

    def _open(self) -> tuple[MlflowStore, bool]:
        """Open the store. Returns it, and whether it has lost the run."""
        for name, value in MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from dstransformer.tracking.mlflow.sqlite_store import prepare_store, update_artifact_paths
        from dstransformer.tracking.mlflow.store import MlflowStore

        check_secrets(self._state.tracking_uri)
        with quiet_libraries():
            if path := sqlite_path(self._state.tracking_uri):
                prepare_store(path)
                update_artifact_paths(path)
            store = MlflowStore(self._state, self._run_folder)
            return store, store.has_lost_run()


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


def _reason(error: BaseException) -> str:
    """A short reason, without passwords and the network libraries' details."""
    text = without_secrets(" ".join(str(error).split()) or repr(error))
    if known := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return known[1]
    if status := re.search(r"too many (\d+) error responses|(\d{3}) Server Error", text):
        return f"it answers with status {status[1] or status[2]}"
    return "timed out" if "timed out" in text else text.partition(" [SQL:")[0]


def crashed_run(run_folder: Path, outbox: Outbox, state: TrackingState) -> Record | None:
    """The run that trained in this folder before and ended without a report, for a record: its ID and last time.

    None if there is none in this store.
    """
    try:
        before = TrackingState.load(run_folder)
    except DataError:  # damaged; the run that starts now replaces it
        return None
    if before is None or before.run_id is None or not outbox.lacks_end():
        return None
    if not is_same_store(before.tracking_uri, state.tracking_uri):
        return None
    return {"run_id": before.run_id, "time": _last_report(run_folder, outbox)}


def _last_report(run_folder: Path, outbox: Outbox) -> int:
    """When a run last logged metrics or something else, in Unix milliseconds."""
    return max(outbox.last_time(), int(1000 * (last_time(run_folder / METRICS_NAME) or 0.0)))


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
    outbox = Outbox(run_folder)
    is_group = outbox.is_group()
    with hold_lock(
        run_folder / (GROUP_LOCK_NAME if is_group else ".lock"),
        f"another process ({{owner}}) sends the records of {run_folder}, a training or `dst track`: wait for it",
        keep=True,
    ):
        with storage_errors(run_folder, full="free some space and run the same command again"):
            if outbox.lacks_end() and not is_group:  # nothing says whether a run of the group is being trained
                outbox.put({"op": "crash", "time": _last_report(run_folder, outbox)})
            if register is not None:
                if "bundle" not in outbox.operations():
                    raise DataError(
                        f"{run_folder} has no final bundle to register yet: finish the run with `dst train`"
                    )
                outbox.put({"op": "register", "name": register, "key": None})
            before = outbox.pending()
        sender = Sender(state, run_folder, outbox)
        return _send_pending(state, run_folder, outbox, sender, before), sender.registered


def _load_state(run_folder: Path) -> TrackingState:
    if not run_folder.exists():
        raise DataError(f"{run_folder} does not exist: name the folder of a run that `dst train` wrote")
    outbox = run_folder / OUTBOX_NAME
    if os.path.lexists(outbox) and not outbox.is_file():
        raise DataError(f"{outbox} is not a file, as it should be to hold the tracking records: move it away")
    state = TrackingState.load(run_folder)
    if state is not None:
        return state
    if outbox.exists() or (run_folder / PENDING_NAME).exists():
        raise DataError(
            f"{run_folder / STATE_NAME}, which names the tracking server, is missing: restore it from a copy, or "
            "resume the run with `dst train`, which writes it and sends the pending records"
        )
    raise DataError(
        f"{run_folder} is not the folder of a tracked run: name one that `dst train` wrote with tracking enabled"
    )


def _send_pending(state: TrackingState, run_folder: Path, outbox: Outbox, sender: Sender, before: int) -> int:
    address = public_address(state.tracking_uri)
    if state.run_id is None and not before:
        raise DataError(
            f"{run_folder}: {address} has never received this run, and no records are pending in {OUTBOX_NAME}: "
            f"restore that file from a copy; the metrics are still in {METRICS_NAME}"
        )
    path = sqlite_path(state.tracking_uri)
    if path and path.is_dir():
        raise StorageError(f"the tracking store {path} is a folder: move it away, and `dst track` creates a new store")
    if path and not path.exists():
        logger.warning("the tracking store %s does not exist: creating it", path)
    try:
        if path:
            sender.connect()  # also repairs a moved or broken store when nothing is pending
        sent = sender.send()
    except StoreUnreachableError as error:
        left = outbox.pending()
        raise StorageError(
            f"{run_folder}: {max(0, before - left - outbox.damaged)} records sent, {left} still pending: "
            f"{address} does not accept them ({error}){'' if _is_settings(error) else '; try again later'}"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot read {error.filename}: {error.strerror}; check its permissions") from None
    if sender.lost:
        raise DataError(
            f"{address} does not know run {state.run_id}, and no records are left to create it again: restore the "
            f"store, or {run_folder / OUTBOX_NAME}, from a copy"
        )
    if outbox.refused:
        raise StorageError(
            f"{run_folder}: {sent} records sent, {outbox.refused} still pending: "
            f"{address} refused them; the warnings above say why"
        )
    if damaged := outbox.count_damaged():
        raise StorageError(
            f"{run_folder}: {sent} records sent; {damaged} damaged lines of {OUTBOX_NAME} were skipped: restore the "
            f"file from a copy, or delete these lines and {CURSOR_NAME}"
        )
    return sent


def _is_settings(error: StoreUnreachableError) -> bool:
    """Whether a setting is at fault rather than the store, so that trying again does not help."""
    return isinstance(error.__cause__, UserError | ValueError | ImportError)


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
        self._outbox = Outbox(folder)
        state = TrackingState(tracking_uri, experiment).with_stored_run_id(folder)
        self._is_new = not (folder / "tracking.json").exists()
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

    def _send(self, *records: Record) -> None:
        try:
            for record in records:
                self._outbox.put(record)
            self._sender.send()
        except (StoreUnreachableError, OSError) as error:
            logger.warning(
                "%s does not accept the record of %s, which is kept and sent later: %s",
                public_address(self._tracking_uri),
                self._folder,
                error,
            )
