"""What other commands do with a tracked run: ``dst track`` sends its pending records, ``dst evaluate`` adds scores."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstransformer.errors import DataError, StorageError, UserError, counted, shell_word, without_secrets
from dstransformer.io.files import hold_lock, storage_errors
from dstransformer.io.json_text import parse_json
from dstransformer.io.products import RUN_LOCK
from dstransformer.tracking.metrics_log import METRICS_NAME, last_time
from dstransformer.tracking.mlflow.location import STATE_NAME, TrackingState, is_same_store, sqlite_path
from dstransformer.tracking.mlflow.outbox import CURSOR_NAME, OUTBOX_NAME, Outbox, Record, unix_ms
from dstransformer.tracking.mlflow.sender import Sender, StoreUnreachableError

logger = logging.getLogger(__name__)

#: Seconds that a training may take to end after its last line in ``metrics.jsonl``.
RUN_END_SECONDS = 120.0

#: The maximum length of a test set's name within the name of a metric.
MAX_CHARACTERS = 200

_FORBIDDEN = re.compile(r"[^\w .\-/]+", re.ASCII)  # in names of metrics


def send_pending(run_folder: Path) -> int:
    """Send the pending tracking records of a run. One that ended without a report is reported as failed.

    Returns:
        The number of records sent.

    Raises:
        DataError: The run was never tracked, or its records are damaged or missing.
        UserError: The run is being trained.
        StorageError: The tracking server does not accept all records, or the run folder cannot be written.
    """
    return _send(run_folder).sent


def register_bundle(run_folder: Path, name: str) -> str:
    """Make the final bundle of a run a version of a registered model. Sends all pending records.

    Returns:
        A line with the version and its score.

    Raises:
        DataError: The run has no final bundle; and as :func:`send_pending`.
        UserError, StorageError: As :func:`send_pending`.
    """
    return _send(run_folder, name).registered or name


def _send(run_folder: Path, register: str | None = None) -> Sender:
    """Send the pending records, after the registration of the bundle under a name. Returns the sender of them."""
    outbox = Outbox(run_folder)
    sender = Sender(_load_state(run_folder), run_folder, outbox)
    with hold_lock(
        run_folder / RUN_LOCK,
        f"another process ({{owner}}) sends the records of {run_folder}, a training or `dst track`: wait for it",
        keep=True,
    ):
        with storage_errors(run_folder, full="free some space and run the same command again"):
            if lacks_end(outbox):
                outbox.put({"op": "crash", "time": _last_report(run_folder, outbox)})
            if register is not None:
                if not any(outbox.records("bundle")):
                    raise DataError(
                        f"{run_folder} has no final bundle to register yet: finish the run with `dst train`"
                    )
                outbox.put({"op": "register", "name": register, "key": None})
            pending = outbox.pending()
        _send_pending(run_folder, sender, pending)
    return sender


def _load_state(run_folder: Path) -> TrackingState:
    if not run_folder.exists():
        raise DataError(f"{run_folder} does not exist: name the folder of a run that `dst train` wrote")
    outbox = run_folder / OUTBOX_NAME
    if os.path.lexists(outbox) and not outbox.is_file():
        raise DataError(f"{outbox} is not a file, as it should be to hold the tracking records: move it away")
    state = TrackingState.load(run_folder)
    if state is not None:
        return state
    if outbox.exists():
        raise DataError(
            f"{run_folder / STATE_NAME}, which names the tracking server, is missing: restore it from a copy, or "
            "resume the run with `dst train`, which writes it and sends the pending records"
        )
    raise DataError(
        f"{run_folder} is not the folder of a tracked run: name one that `dst train` wrote with tracking enabled"
    )


def _send_pending(run_folder: Path, sender: Sender, pending: int) -> None:
    state, outbox = sender.state, sender.outbox
    address = without_secrets(state.tracking_uri)
    if state.run_id is None and not pending:
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
        sender.send()
    except StoreUnreachableError as error:
        by_setting = isinstance(error.__cause__, UserError | ValueError | ImportError)  # trying again does not help
        raise StorageError(
            f"{run_folder}: {sender.sent} records sent, {outbox.pending()} still pending: "
            f"{address} does not accept them ({error}){'' if by_setting else '; try again later'}"
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
            f"{run_folder}: {sender.sent} records sent, {outbox.refused} still pending: "
            f"{address} refused them; the warnings above say why"
        )
    if damaged := outbox.count_damaged():
        raise StorageError(
            f"{run_folder}: {sender.sent} records sent; skipped {counted(damaged, 'damaged line')} of {OUTBOX_NAME}: "
            f"restore the file from a copy, or delete what is damaged and {CURSOR_NAME}"
        )


def crashed_run(run_folder: Path, outbox: Outbox, state: TrackingState) -> Record | None:
    """ID and last time, for a record, of the run that trained in this folder before and ended without a report.

    None if there was no such run, or another store has it.
    """
    try:
        before = TrackingState.load(run_folder)
    except DataError:  # damaged; the run that starts now replaces it
        return None
    if before is None or before.run_id is None or not lacks_end(outbox):
        return None
    if not is_same_store(before.tracking_uri, state.tracking_uri):
        return None
    return {"run_id": before.run_id, "time": _last_report(run_folder, outbox)}


def _last_report(run_folder: Path, outbox: Outbox) -> int:
    """When a run last logged metrics or put a record into the outbox, in Unix milliseconds."""
    return max(last_record_time(outbox), int(1000 * (last_time(run_folder / METRICS_NAME) or 0.0)))


def lacks_end(outbox: Outbox) -> bool:
    """Whether no record of an end follows the last start of a run."""
    turns = [record["op"] for record in outbox.records() if record["op"] in ("start", "finish", "crash")]
    return turns[-1:] == ["start"]


def last_record_time(outbox: Outbox) -> int:
    """When the training last put a record into the outbox, in Unix milliseconds; 0 if it never did."""
    times = [0]
    for record in outbox.records():
        if record["op"] == "metrics":
            times += [when for _, _, when, _ in record["metrics"]]
        elif record["op"] != "evaluation" and isinstance(record.get("time"), int):
            times.append(record["time"])
    return max(times)


def find_run(bundle: Path, recorded: str | None) -> Path | None:
    """The folder of the tracked run that contains a bundle, or else the one recorded in the bundle's provenance.

    A bundle that was averaged or copied elsewhere has the latter. None if neither is tracked.
    """
    folder = bundle.absolute()
    candidates = [folder, *folder.parents, *([] if recorded is None else [Path(recorded)])]
    return next((folder for folder in candidates if (folder / STATE_NAME).is_file()), None)


def log_evaluation(run_folder: Path, result: Mapping[str, Any]) -> None:
    """Record the scores of a bundle on a test set in its run. A training in progress sends them, else
    :func:`send_evaluations`.

    Args:
        run_folder: See :func:`find_run`.
        result: The result as plain data: ``bundle``, ``step``, ``metrics``, ``test_set`` (with ``name``, ``digest`` and
            ``ref``) and whatever else describes it.

    Raises:
        StorageError: The run folder cannot be written.
    """
    test_set = result["test_set"]
    name = _metric_part(test_set["name"])
    step = result["step"] if isinstance(result.get("step"), int) else 0
    bundle, run = Path(result["bundle"]).absolute(), run_folder.absolute()
    paths = [str(bundle)]  # under which MLflow's models of the run may have the bundle
    if bundle.is_relative_to(run):
        paths.append(str(bundle.relative_to(run)))
        if bundle.name == "bundle" and bundle.parent != run:
            paths.append(str(bundle.parent))  # a checkpoint
    try:
        Outbox(run_folder).put({
            "op": "evaluation",
            "key": uuid.uuid4().hex,
            "time": unix_ms(),
            "step": step,
            "name": name,
            "metrics": dict(result["metrics"]),
            "dataset": {"name": name, "digest": test_set["digest"], "path": test_set["ref"]},
            "models": paths,
            "text": json.dumps(dict(result), indent=2, ensure_ascii=False) + "\n",
        })  # fmt: skip
    except OSError as error:
        raise StorageError(f"cannot write {error.filename}: {error.strerror}; the scores are not in MLflow") from None


def logged_evaluations(run_folder: Path) -> list[dict[str, Any]]:
    """The results that :func:`log_evaluation` has recorded in a run, sent or not."""
    records = Outbox(run_folder).records("evaluation")
    return [parse_json(record["text"], nan=True) for record in records]


def send_evaluations(run_folder: Path, *, wait_seconds: float = 0.0) -> str | None:
    """Send what :func:`log_evaluation` has recorded, after waiting for a training that is about to end.

    Returns:
        A line that says why MLflow does not have the scores yet; None if it does. A store that is down is not an error:
        the records are kept.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            send_pending(run_folder)
        except (StorageError, DataError) as error:
            return f"MLflow does not have the scores yet: {error}; `dst track {shell_word(run_folder)}` sends them"
        except UserError:  # another process holds the run
            if time.monotonic() >= deadline:
                return f"{run_folder} is being trained: the training sends the scores to MLflow"
            time.sleep(1.0)
        else:
            return None


def _metric_part(name: str) -> str:
    """A test set's name as part of a metric's name, which MLflow limits to a relative path of 250 characters."""
    parts = [part for part in _FORBIDDEN.sub("-", name).split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[-MAX_CHARACTERS:].lstrip("/") or "test"
