"""Puts the scores of ``dst evaluate`` into the MLflow run that trained the model."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstransformer.errors import DataError, StorageError, UserError
from dstransformer.io.json_text import parse_json
from dstransformer.tracking.mlflow.location import STATE_NAME
from dstransformer.tracking.mlflow.outbox import Record, Spool, unix_ms
from dstransformer.tracking.mlflow.sender import send_pending

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

#: Seconds that a training may take to end after its last line in ``metrics.jsonl``.
ENDING = 120.0

#: Of the name of a test set in that of a metric.
MOST_CHARACTERS = 200

_UNNAMEABLE = re.compile(r"[^\w .\-/]+", re.ASCII)


def find_run(bundle: Path, recorded: str | None) -> Path | None:
    """The folder of the tracked run that a bundle belongs to.

    Args:
        bundle: The folder of the bundle.
        recorded: The run folder in the provenance of the bundle, for one that was averaged or copied elsewhere.

    Returns:
        The run folder that the bundle lies in, or the recorded one; None if neither is tracked. The folder of a group
        of runs is none of them.
    """
    place = bundle.absolute()
    candidates = [place, *place.parents, *([] if recorded is None else [Path(recorded)])]
    tracked = (folder for folder in candidates if (folder / STATE_NAME).is_file())
    return next((folder for folder in tracked if not Spool(folder).is_group()), None)


def log_evaluation(run_folder: Path, result: Mapping[str, Any]) -> None:
    """Record the scores of a bundle on a test set in its run. A training that goes on sends them; see :func:`send`.

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
        Spool(run_folder).put({
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
    records = Spool(run_folder).records("evaluation")
    return [parse_json(record["text"], nan=True) for record in records]


def send(run_folder: Path, *, patience: float = 0.0) -> str | None:
    """Send what :func:`log_evaluation` has recorded.

    Args:
        run_folder: The run folder.
        patience: Seconds to wait for a training that is about to end.

    Returns:
        A line that says why MLflow has not got it yet; None if it has. A store that is down is no error: the records
        are kept.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            send_pending(run_folder)
        except (StorageError, DataError) as error:
            return f"MLflow has not got the scores yet: {error}; `dst track {run_folder}` sends them"
        except UserError:  # another process holds the run
            if time.monotonic() >= deadline:
                return f"{run_folder} is being trained: the training sends the scores to MLflow"
            time.sleep(1.0)
        else:
            return None


def _metric_part(name: str) -> str:
    """A test set's name as a part of MLflow's names of metrics, which are relative paths of at most 250 characters."""
    parts = [part for part in _UNNAMEABLE.sub("-", name).split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[-MOST_CHARACTERS:].lstrip("/") or "test"


def _model_paths(bundle: Path, run_folder: Path) -> list[str]:
    """The paths by which MLflow's models of the run may know a bundle."""
    paths = [str(bundle)]
    if bundle.is_relative_to(run_folder):
        paths.append(str(bundle.relative_to(run_folder)))
        if bundle.name == "bundle" and bundle.parent != run_folder:
            paths.append(str(bundle.parent))  # a checkpoint
    return paths


def send_evaluation(client: MlflowClient, run_id: str, record: Record) -> None:
    """Apply a record of :func:`log_evaluation`: metrics with model and dataset, and the whole result as an artifact.

    Raises the errors of MLflow unchanged. A record that is sent twice changes nothing.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric

    dataset = record["dataset"]
    source = json.dumps({"uri": dataset["path"]})
    logged = Dataset(name=dataset["name"], digest=dataset["digest"], source_type="local", source=source)
    client.log_inputs(run_id, [DatasetInput(logged, [InputTag("mlflow.data.context", "evaluation")])])
    model_id = _find_model(client, run_id, record["models"])
    metrics = [
        Metric(
            f"evaluate/{record['name']}/{name}",
            float(value),
            record["time"],
            record["step"],
            model_id=model_id,
            dataset_name=dataset["name"],
            dataset_digest=dataset["digest"],
            run_id=run_id,
        )
        for name, value in record["metrics"].items()
    ]
    client.log_batch(run_id, metrics=metrics)
    name = re.sub(r"[/ ]+", "-", record["name"])
    client.log_text(run_id, record["text"], f"evaluations/{name}-step-{record['step']:08d}-{record['key'][:8]}.json")


def _find_model(client: MlflowClient, run_id: str, paths: list[str]) -> str | None:
    """The newest model of the run with one of these paths."""
    experiment = client.get_run(run_id).info.experiment_id
    token = None
    found = []
    while True:
        page = client.search_logged_models([experiment], f"source_run_id = '{run_id}'", page_token=token)
        found += [model for model in page if model.tags.get("path") in paths]
        if not (token := page.token):
            break
    newest = max(found, key=lambda model: int(model.creation_timestamp), default=None)
    return None if newest is None else str(newest.model_id)
