"""Puts the scores of ``dst evaluate`` into the MLflow run that trained the model."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstransformer.errors import DataError, StorageError, UserError
from dstransformer.io.json_text import parse_json
from dstransformer.tracking.mlflow.location import STATE_NAME
from dstransformer.tracking.mlflow.outbox import Outbox
from dstransformer.tracking.mlflow.records import unix_ms
from dstransformer.tracking.mlflow.sender import send_pending

#: Seconds that a training may take to end after its last line in ``metrics.jsonl``.
ENDING = 120.0

#: The longest name of a test set within the name of a metric.
MAX_CHARACTERS = 200

_UNNAMEABLE = re.compile(r"[^\w .\-/]+", re.ASCII)


def find_run(bundle: Path, recorded: str | None) -> Path | None:
    """The folder of the tracked run that a bundle belongs to.

    Args:
        bundle: The folder of the bundle.
        recorded: The run folder in the provenance of the bundle, for one that was averaged or copied elsewhere.

    Returns:
        The run folder that contains the bundle, or the recorded one; None if neither is tracked. The folder of a
        group of runs does not count.
    """
    folder = bundle.absolute()
    candidates = [folder, *folder.parents, *([] if recorded is None else [Path(recorded)])]
    tracked = (folder for folder in candidates if (folder / STATE_NAME).is_file())
    return next((folder for folder in tracked if not Outbox(folder).is_group()), None)


def log_evaluation(run_folder: Path, result: Mapping[str, Any]) -> None:
    """Record the scores of a bundle on a test set in its run. A training that is running sends them; see :func:`send`.

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
    bundle = Path(result["bundle"]).absolute()
    try:
        Outbox(run_folder).put({
            "op": "evaluation",
            "key": uuid.uuid4().hex,
            "time": unix_ms(),
            "step": step,
            "name": name,
            "metrics": dict(result["metrics"]),
            "dataset": {"name": name, "digest": test_set["digest"], "path": test_set["ref"]},
            "models": _model_paths(bundle, run_folder.absolute()),
            "text": json.dumps(dict(result), indent=2, ensure_ascii=False) + "\n",
        })  # fmt: skip
    except OSError as error:
        raise StorageError(f"cannot write {error.filename}: {error.strerror}; the scores are not in MLflow") from None


def logged_evaluations(run_folder: Path) -> list[dict[str, Any]]:
    """The results that :func:`log_evaluation` has recorded in a run, sent or not."""
    records = Outbox(run_folder).records("evaluation")
    return [parse_json(record["text"], nan=True) for record in records]


def send(run_folder: Path, *, wait_seconds: float = 0.0) -> str | None:
    """Send what :func:`log_evaluation` has recorded.

    Args:
        run_folder: The run folder.
        wait_seconds: Seconds to wait for a training that is about to end.

    Returns:
        A line that says why MLflow does not have it yet; None if it does. A store that is down is not an error: the
        records are kept.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            send_pending(run_folder)
        except (StorageError, DataError) as error:
            return f"MLflow does not have the scores yet: {error}; `dst track {run_folder}` sends them"
        except UserError:  # another process holds the run
            if time.monotonic() >= deadline:
                return f"{run_folder} is being trained: the training sends the scores to MLflow"
            time.sleep(1.0)
        else:
            return None


def _metric_part(name: str) -> str:
    """A test set's name as a part of MLflow's names of metrics, which are relative paths of at most 250 characters."""
    parts = [part for part in _UNNAMEABLE.sub("-", name).split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[-MAX_CHARACTERS:].lstrip("/") or "test"


def _model_paths(bundle: Path, run_folder: Path) -> list[str]:
    """The paths by which MLflow's models of the run may know a bundle."""
    paths = [str(bundle)]
    if bundle.is_relative_to(run_folder):
        paths.append(str(bundle.relative_to(run_folder)))
        if bundle.name == "bundle" and bundle.parent != run_folder:
            paths.append(str(bundle.parent))  # a checkpoint
    return paths
