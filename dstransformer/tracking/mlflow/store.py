"""Applies records to an MLflow store. Imports mlflow, so import this module lazily.

Sending a record is idempotent, because the response to a successful request may be lost.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from dstransformer.tracking.mlflow.location import TrackingState, artifact_location, sqlite_path
from dstransformer.tracking.mlflow.models import KEY_TAG, NOTE_TAG, RunModels, register
from dstransformer.tracking.mlflow.outbox import Record, unix_ms
from dstransformer.tracking.mlflow.page import describe_crash, page_instructions

logger = logging.getLogger(__name__)

PROBE_TAG = "mlflow.dst_probe"  # hidden in MLflow's UI
ENTRIES_PER_BATCH = 100  # MLflow's limit of parameters or tags per request
MAX_VALUE_LENGTH = 6000

MODEL_OPERATIONS = {
    "checkpoint": RunModels.add_checkpoint,
    "checkpoint_scores": RunModels.add_scores,
    "checkpoints": RunModels.mark_deleted,
    "bundle": RunModels.add_bundle,
}


class MlflowStore:
    """One run in an MLflow store. Methods raise the errors of MLflow, the network and the disk unchanged."""

    def __init__(self, state: TrackingState, run_folder: Path) -> None:
        #: Its ``run_id`` is None until the store has created the run.
        self.state = state
        self._run_folder = run_folder
        self._client = MlflowClient(state.tracking_uri)
        self._experiment: str | None = None
        self._operations: Mapping[str, Callable[[Record], None]] = {
            "start": self._start,
            "params": self._params,
            "metrics": self._metrics,
            "tags": self._tags,
            "text": self._text,
            "dataset": self._dataset,
            "table": self._table,
            "register": self._register,
            "finish": self._finish,
            "crash": lambda record: self._mark_crashed(self.run_id, record["time"]),
            "evaluation": self._evaluation,
        }
        #: The result of the last registration of the run's bundle, as a line; None if there was none.
        self.registered: str | None = None

    @property
    def run_id(self) -> str | None:
        """The MLflow run ID; None until the store has created the run."""
        return self.state.run_id

    @property
    def page(self) -> str | None:
        """How to open the run's page in MLflow; None until a record was sent."""
        if self._experiment is None or self.run_id is None:
            return None
        return page_instructions(self.state.tracking_uri, self._experiment, self.run_id)

    def has_lost_run(self) -> bool:
        """Whether the store no longer knows the run. A run deleted within MLflow is still known."""
        return self.run_id is not None and self._stage(self.run_id) is None

    def send(self, record: Record) -> None:
        """Apply one record."""
        name = record["op"]
        if name in MODEL_OPERATIONS:
            MODEL_OPERATIONS[name](self._models, record)
        else:
            self._operations[name](record)

    def accepts_writes(self) -> bool:
        """Whether the store has the run and can write to it; then a refused record is itself at fault."""
        path = sqlite_path(self.state.tracking_uri)
        if path is not None and not path.exists():  # an open connection can still read a deleted file
            return False
        try:
            if self.run_id is None or self._stage(self.run_id) != "active":
                return False
            self._client.set_tag(self.run_id, PROBE_TAG, str(unix_ms()))  # a full disk can still be read
        except Exception:
            return False
        return True

    @cached_property
    def _models(self) -> RunModels:
        assert self.run_id is not None
        return RunModels(self._client, self.run_id, self._run_folder, self.state.tracking_uri)

    def _start(self, record: Record) -> None:
        if crashed := record.get("crashed"):
            self._mark_crashed(crashed["run_id"], crashed["time"])
        known = self.run_id if record["resume"] else None
        if known is not None and self._stage(known) == "active":
            self._client.update_run(known, status="RUNNING", name=record["run_name"])
            run_id = known
        else:
            run_id = self._create_run(record)
        self.state = replace(self.state, run_id=run_id)
        self.state.save(self._run_folder)
        self.__dict__.pop("_models", None)
        self._experiment = str(self._client.get_run(run_id).info.experiment_id)
        self._tags(record)

    def _stage(self, run_id: str) -> str | None:
        """``active``, or ``deleted`` within MLflow; None if the store does not know the run."""
        try:
            return str(self._client.get_run(run_id).info.lifecycle_stage)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _create_run(self, record: Record) -> str:
        experiment = self._experiment_id()
        if os.environ.get("MLFLOW_EXPERIMENT_ID", experiment) != experiment:
            named = self.state.experiment
            logger.warning("MLFLOW_EXPERIMENT_ID is not used, the run is in %s: set MLFLOW_EXPERIMENT_NAME", named)
        if known := self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{record['key']}'", max_results=1):
            return str(known[0].info.run_id)
        tags = {KEY_TAG: record["key"], "mlflow.user": _user(), "mlflow.source.name": "dst train"}
        run = self._client.create_run(experiment, record["time"], tags, record["run_name"] or record["default_name"])
        return str(run.info.run_id)

    def _experiment_id(self) -> str:
        name = self.state.experiment
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            location = artifact_location(self.state.tracking_uri)
            try:
                return str(self._client.create_experiment(name, location))
            except MlflowException as error:  # another run created it first
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id)

    def _params(self, record: Record) -> None:
        """Log new parameters. MLflow parameters cannot change, so a resumed run has its own values as tags.

        A value that is the first one again has no tag.
        """
        run = self._client.get_run(self.run_id)
        logged = run.data.params
        params = {key: value[:MAX_VALUE_LENGTH] for key, value in record["params"].items()}
        new = [Param(key, value) for key, value in params.items() if key not in logged]
        for first in range(0, len(new), ENTRIES_PER_BATCH):
            self._client.log_batch(self.run_id, params=new[first : first + ENTRIES_PER_BATCH])
        changed = {f"changed.{key}": value for key, value in params.items() if logged.get(key, value) != value}
        self._tags({"tags": changed})
        for key, value in params.items():
            if logged.get(key) == value and f"changed.{key}" in run.data.tags:
                self._client.delete_tag(self.run_id, f"changed.{key}")

    def _metrics(self, record: Record) -> None:
        metrics = [Metric(key, value, when, step) for key, value, when, step in record["metrics"]]
        self._client.log_batch(self.run_id, metrics=metrics)

    def _tags(self, record: Record) -> None:
        tags = [RunTag(key, value[:MAX_VALUE_LENGTH]) for key, value in record["tags"].items()]
        for first in range(0, len(tags), ENTRIES_PER_BATCH):
            self._client.log_batch(self.run_id, tags=tags[first : first + ENTRIES_PER_BATCH])

    def _text(self, record: Record) -> None:
        self._client.log_text(self.run_id, record["text"], record["file"])

    def _dataset(self, record: Record) -> None:
        dataset = Dataset(
            name=record["name"],
            digest=record["digest"],
            source_type="local",
            source=json.dumps({"uri": record["path"]}),
            profile=json.dumps(record["profile"]) if "profile" in record else None,
        )
        tags = {"mlflow.data.context": record.get("context", "training"), **record.get("tags", {})}
        self._client.log_inputs(self.run_id, [DatasetInput(dataset, [InputTag(*tag) for tag in tags.items()])])

    def _table(self, record: Record) -> None:
        """Put rows into a table that MLflow shows. A row replaces those with the same first ``same`` columns."""
        same = record.get("same", 1)
        replaced = [row[:same] for row in record["rows"]]
        artifacts = self._client.list_artifacts(self.run_id, str(Path(record["file"]).parent))
        earlier: list[list[Any]] = []
        if record["file"] in {artifact.path for artifact in artifacts}:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(self._client.download_artifacts(self.run_id, record["file"], folder))
                earlier = json.loads(path.read_bytes())["data"]
        kept = [row for row in earlier if row[:same] not in replaced]
        rows = sorted(kept + record["rows"], key=lambda row: row[:same])
        content = {"columns": record["columns"], "data": rows}
        self._client.log_text(self.run_id, json.dumps(content, ensure_ascii=False), record["file"])
        shown = json.loads(self._client.get_run(self.run_id).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
        entry = {"path": record["file"], "type": "table"}
        if entry not in shown:
            self._client.set_tag(self.run_id, MLFLOW_LOGGED_ARTIFACTS, json.dumps([*shown, entry]))

    def _register(self, record: Record) -> None:
        self.registered = register(self._client, self._models.bundle(record["key"]), record["name"])

    def _evaluation(self, record: Record) -> None:
        """Log metrics of ``dst evaluate`` with model and dataset, and the whole result as an artifact."""
        dataset = record["dataset"]
        self._dataset({**dataset, "context": "evaluation"})
        metrics = {f"evaluate/{record['name']}/{name}": value for name, value in record["metrics"].items()}
        scores = {"metrics": metrics, "time": record["time"], "dataset": dataset}
        self._models.log_scores(self._models.find(record["models"]), scores, record["step"])
        name = re.sub(r"[/ ]+", "-", record["name"])
        self._client.log_text(
            self.run_id, record["text"], f"evaluations/{name}-step-{record['step']:08d}-{record['key'][:8]}.json"
        )

    def _finish(self, record: Record) -> None:
        self._client.set_terminated(self.run_id, record["status"].upper(), record["time"])

    def _mark_crashed(self, run_id: str | None, when: int) -> None:
        """Mark a run that ended without a report as failed, if its status in the store is still running."""
        if run_id is None or self._stage(run_id) != "active":
            return
        run = self._client.get_run(run_id)
        if run.info.status == "RUNNING":
            note = run.data.tags.get(NOTE_TAG, "")
            self._client.set_tag(run_id, NOTE_TAG, describe_crash(note))
            self._client.set_terminated(run_id, "FAILED", when)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, the user ID may have no name
        return "unknown"
