"""Applies records to an MLflow store. Imports mlflow, so import this module lazily.

Sending a record is idempotent, because the response to a successful request may be lost.
"""

from __future__ import annotations

import getpass
import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import mlflow.pyfunc
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModel, LoggedModelOutput, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import ColSpec, Schema

from dstransformer.tracking.jsonl import METRICS_NAME
from dstransformer.tracking.location import TrackingState, artifact_location, sqlite_path
from dstransformer.tracking.page import page_instructions, public_address
from dstransformer.tracking.spool import Record

logger = logging.getLogger(__name__)
# The courier reports failures itself, once and in one line.
for library in ("mlflow", "alembic", "sqlalchemy", "urllib3"):
    logging.getLogger(library).setLevel(logging.CRITICAL + 1)

ENTRIES_PER_BATCH = 100  # MLflow's limit of parameters or tags per request
MAX_VALUE_LENGTH = 6000
KEY_TAG = "mlflow.dst_key"  # identifies what a record created, to avoid duplicates; hidden in MLflow's UI
MODEL_USAGE = """```python
import mlflow

mlflow.set_tracking_uri("{source}")
mlflow.pyfunc.load_model("models:/{model_id}").predict(["A sentence."])
```
"""
BUNDLE_FOLDER = "bundle"
LOADER_MODULE = "dstransformer.export.pyfunc"


class MlflowStore:
    """One run in an MLflow store. Methods raise the errors of MLflow, the network and the disk unchanged."""

    def __init__(self, state: TrackingState, run_folder: Path) -> None:
        self._state = state
        self._run_folder = run_folder
        self._client = MlflowClient(state.tracking_uri)
        self._experiment: str | None = None
        self._operations: Mapping[str, Callable[[Record], None]] = {
            "start": self._start,
            "params": self._params,
            "metrics": self._metrics,
            "tags": self._tags,
            "text": self._text,
            "file": self._file,
            "dataset": self._dataset,
            "bundle": self._bundle,
            "plot": self._plot,
            "finish": self._finish,
        }

    @property
    def state(self) -> TrackingState:
        """The tracking state; its ``run_id`` is None until the store has created the run."""
        return self._state

    @property
    def run_id(self) -> str | None:
        """The MLflow run ID; None until the store has created the run."""
        return self._state.run_id

    @property
    def page(self) -> str | None:
        """How to open the run's page in MLflow; None until a record was sent."""
        if self._experiment is None or self.run_id is None:
            return None
        return page_instructions(self._state.tracking_uri, self._experiment, self.run_id)

    def has_lost_run(self) -> bool:
        """Whether the store no longer knows the run. A run deleted within MLflow is still known."""
        try:
            if self.run_id is not None:
                self._client.get_run(self.run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return True
        return False

    def send(self, record: Record) -> None:
        """Apply one record."""
        self._operations[record["op"]](record)

    def answers(self) -> bool:
        """Whether the store works and has the run; then a refused record is itself at fault."""
        path = sqlite_path(self._state.tracking_uri)
        if path is not None and not path.exists():  # an open connection can still read a deleted file
            return False
        try:
            return self.run_id is not None and self._find_run(self.run_id)
        except Exception:
            return False

    def _start(self, record: Record) -> None:
        known = self.run_id if record["resume"] else None
        if known is not None and self._find_run(known):
            self._client.update_run(known, status="RUNNING", name=record["run_name"])
            run_id = known
        else:
            run_id = self._create_run(record)
        self._state = replace(self._state, run_id=run_id)
        self._state.save(self._run_folder)
        self._experiment = str(self._client.get_run(run_id).info.experiment_id)
        self._tags(record)

    def _find_run(self, run_id: str) -> bool:
        try:
            return bool(self._client.get_run(run_id).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def _create_run(self, record: Record) -> str:
        experiment = self._experiment_id()
        if made := self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{record['key']}'", max_results=1):
            return str(made[0].info.run_id)
        tags = {KEY_TAG: record["key"], "mlflow.user": _user(), "mlflow.source.name": "dst train"}
        run = self._client.create_run(experiment, record["time"], tags, record["run_name"] or record["default_name"])
        return str(run.info.run_id)

    def _experiment_id(self) -> str:
        name = self._state.experiment
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            location = artifact_location(self._state.tracking_uri)
            try:
                return str(self._client.create_experiment(name, location))
            except MlflowException as error:  # another run created it first
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id)

    def _params(self, record: Record) -> None:
        """Log new parameters. MLflow parameters cannot change, so changed values of a resumed run become tags."""
        logged = self._client.get_run(self.run_id).data.params
        wanted = {key: value[:MAX_VALUE_LENGTH] for key, value in record["params"].items()}
        new = [Param(key, value) for key, value in wanted.items() if key not in logged]
        for first in range(0, len(new), ENTRIES_PER_BATCH):
            self._client.log_batch(self.run_id, params=new[first : first + ENTRIES_PER_BATCH])
        changed = {f"changed.{key}": value for key, value in wanted.items() if logged.get(key, value) != value}
        self._tags({"tags": changed})

    def _metrics(self, record: Record) -> None:
        metrics = [Metric(key, value, when, step) for key, value, when, step in record["metrics"]]
        self._client.log_batch(self.run_id, metrics=metrics)

    def _tags(self, record: Record) -> None:
        tags = [RunTag(key, value[:MAX_VALUE_LENGTH]) for key, value in record["tags"].items()]
        for first in range(0, len(tags), ENTRIES_PER_BATCH):
            self._client.log_batch(self.run_id, tags=tags[first : first + ENTRIES_PER_BATCH])

    def _text(self, record: Record) -> None:
        self._client.log_text(self.run_id, record["text"], record["file"])

    def _file(self, record: Record) -> None:
        """Upload a file of the run folder."""
        self._client.log_artifact(self.run_id, str(self._run_folder / record["path"]))

    def _dataset(self, record: Record) -> None:
        dataset = Dataset(
            name=record["name"],
            digest=record["digest"],
            source_type="local",
            source=json.dumps({"uri": record["path"]}),
            profile=json.dumps(record["profile"]),
        )
        context = [InputTag("mlflow.data.context", "training")]
        self._client.log_inputs(self.run_id, [DatasetInput(dataset, context)])

    def _bundle(self, record: Record) -> None:
        """Upload a bundle as a logged model that ``mlflow.pyfunc.load_model`` opens."""
        bundle = self._run_folder / record["path"]
        if not bundle.is_dir():
            raise FileNotFoundError(f"the bundle {bundle} does not exist")
        model = self._logged_model(record)
        self._client.log_model_artifacts(model.model_id, str(bundle), BUNDLE_FOLDER)
        with tempfile.TemporaryDirectory() as folder:
            description = Path(folder, "MLmodel")
            self._model_description(model.model_id).save(str(description))
            self._client.log_model_artifact(model.model_id, str(description))
        outputs = self._client.get_run(self.run_id).outputs.model_outputs
        if model.model_id not in {output.model_id for output in outputs}:
            self._client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, record["step"])])
        metrics = [
            Metric(key, value, record["time"], record["step"], model_id=model.model_id, run_id=self.run_id)
            for key, value in record["metrics"].items()
        ]
        self._client.log_batch(self.run_id, metrics=metrics)
        usage = MODEL_USAGE.format(model_id=model.model_id, source=public_address(self._state.tracking_uri))
        self._client.set_logged_model_tags(model.model_id, {"mlflow.note.content": usage})
        self._client.finalize_logged_model(model.model_id, "READY")

    def _logged_model(self, record: Record) -> LoggedModel:
        experiment = self._client.get_run(self.run_id).info.experiment_id
        if made := self._client.search_logged_models([experiment], f"tags.`{KEY_TAG}` = '{record['key']}'"):
            return made[0]
        return self._client.create_logged_model(
            experiment,
            name=record["name"],
            source_run_id=self.run_id,
            tags={KEY_TAG: record["key"], "path": str(record["path"])},
            model_type="translation",
        )

    def _model_description(self, model_id: str) -> Model:
        text = Schema([ColSpec("string")])
        model = Model(run_id=self.run_id, model_id=model_id, signature=ModelSignature(inputs=text, outputs=text))
        mlflow.pyfunc.add_to_model(model, loader_module=LOADER_MODULE, data=BUNDLE_FOLDER)
        return model

    def _plot(self, record: Record) -> None:
        """Plot and upload the training curves. If plotting fails, log a warning."""
        try:
            from dstransformer.tracking.plot import draw_training

            image = draw_training(self._run_folder / METRICS_NAME, record["title"])
        except Exception as error:
            logger.warning("cannot plot the training curves: %r", error)
            return
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder, Path(record["file"]).name)
            picture.write_bytes(image)
            self._client.log_artifact(self.run_id, str(picture), str(Path(record["file"]).parent))

    def _finish(self, record: Record) -> None:
        self._client.set_terminated(self.run_id, record["status"].upper(), record["time"])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, the user ID may have no name
        return "unknown"
