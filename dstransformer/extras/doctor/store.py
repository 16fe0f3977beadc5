"""Checks of the MLflow store, and of the records that wait for it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from dstransformer.errors import DstError, counted, shell_word, without_secrets
from dstransformer.extras.doctor.finding import Finding
from dstransformer.io.files import lock_owner
from dstransformer.io.products import RUN_LOCK
from dstransformer.tracking.mlflow.location import (
    STATE_NAME,
    TrackingState,
    UnusableStoreError,
    check_database,
    check_secrets,
    is_database,
    resolve_tracking_uri,
    sqlite_path,
)
from dstransformer.tracking.mlflow.outbox import OUTBOX_NAME, Outbox
from dstransformer.tracking.mlflow.sender import prepare_mlflow, quiet_libraries, short_reason
from dstransformer.tracking.mlflow.tracked_run import lacks_end

#: What to do by the beginning of the status of an answer.
_LOGIN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, of one who may use it"
_BY_STATUS = {"401": _LOGIN, "403": _LOGIN, "4": "correct the address, at which no MLflow answers", "5": "read its log"}

#: Runs that a finding names at most.
_MAX_NAMED = 3


def check_default_store(runs: Path) -> Finding:
    """The store that a new run in a folder would use, if its preset names none."""
    try:
        return check_store(resolve_tracking_uri(None, runs / "run"))
    except DstError as error:
        return Finding("mlflow store", str(error), "FAULT")


def check_store(address: str) -> Finding:
    """Whether a store answers and fits the installed MLflow."""
    place, path = without_secrets(address), sqlite_path(address)
    try:
        if path is not None and not path.exists():
            return Finding("mlflow store", f"{place} does not exist yet: the first run creates it")
        check_secrets(address)
        if is_database(address):
            check_database(address)
        else:
            prepare_mlflow()
            with quiet_libraries():
                from mlflow.tracking import MlflowClient

                MlflowClient(address).search_experiments(max_results=1)
    except UnusableStoreError as error:
        return Finding("mlflow store", str(error), "FAULT")
    except Exception as error:
        reason = short_reason(error)
        status = next((advice for number, advice in _BY_STATUS.items() if f"status {number}" in reason), None)
        advice = status or ("start the server" if path is None else "free the file")
        advice += "; runs train on, and `dst track RUN` sends their records later"
        if path is not None and ("not a database" in str(error) or "malformed" in str(error)):
            advice = "move the file away: the next run creates a new one, and `dst track RUN` sends each run again"
        if isinstance(error, ModuleNotFoundError):
            advice = f"pip install {error.name}, the driver of that database"
        return Finding("mlflow store", f"{place} cannot be used: {reason}", "FAULT", advice)
    return Finding("mlflow store", f"{place} answers and fits")


def check_outboxes(runs: Path) -> Iterator[Finding]:
    """Whether runs below a folder have records that their store has not received."""
    pending = {}
    for state in sorted(runs.glob(f"*/{STATE_NAME}")):
        number = _count(state.parent) if lock_owner(state.parent / RUN_LOCK) is None else 0
        if isinstance(number, str):
            yield Finding("records", number, "FAULT")
        elif number:
            pending[state.parent] = number
    if not pending:
        yield Finding("records", f"none pending in {runs}")
        return
    named = "; ".join(f"dst track {shell_word(run)}" for run in list(pending)[:_MAX_NAMED])
    more = f"; and {len(pending) - _MAX_NAMED} more" if len(pending) > _MAX_NAMED else ""
    text = f"{counted(sum(pending.values()), 'record')} of {counted(len(pending), 'run')} in {runs} not in MLflow"
    yield Finding("records", text, "FAULT", f"once the store answers: {named}{more}")


def check_tracking(run: Path, *, in_training: bool) -> Iterator[Finding]:
    """The store of a run, and its records, which a process that trains in its folder sends itself."""
    try:
        state = TrackingState.load(run)
    except DstError as error:
        yield Finding("mlflow store", str(error), "FAULT")
        return
    if state is None:
        yield Finding("mlflow store", "the run is not tracked")
        return
    yield check_store(state.tracking_uri)
    number, again = _count(run), f"dst track {shell_word(run)}"
    if isinstance(number, str):
        yield Finding("records", number, "FAULT")
    elif number and not in_training:
        yield Finding("records", f"{counted(number, 'record')} not in MLflow", "FAULT", again)
    elif not in_training and lacks_end(Outbox(run)):
        yield Finding("records", "MLflow takes the run for RUNNING", "note", f"{again} marks it as FAILED")
    else:
        yield Finding("records", f"{number} to be sent by the training" if number else "MLflow has all")


def _count(run: Path) -> int | str:
    """The number of pending records of a run, or why they cannot be counted."""
    if os.path.lexists(run / OUTBOX_NAME) and not (run / OUTBOX_NAME).is_file():
        return f"{run / OUTBOX_NAME} is not a file: move it away"
    try:
        outbox = Outbox(run)
        pending, damaged = outbox.pending(), outbox.count_damaged()
    except DstError as error:
        return str(error)
    except (OSError, sqlite3.Error) as error:
        return f"cannot read {run / OUTBOX_NAME}: {error}"
    if damaged:
        return (
            f"{run / OUTBOX_NAME} has {counted(damaged, 'damaged line')}, which MLflow will lack: restore the file "
            "from a copy; metrics.jsonl has the metrics"
        )
    return pending
