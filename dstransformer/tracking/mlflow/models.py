"""The logged models of a run in MLflow: its checkpoints and its final bundle, and registered models. Imports mlflow.

A checkpoint is an *external* model: MLflow has its path, hash and scores, so that its pages and searches rank
checkpoints, but none of its files. The bundle is uploaded whole. It may become a version of a registered model.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import yaml
from mlflow.entities import LoggedModel, LoggedModelOutput, Metric
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.models.utils import get_external_mlflow_model_spec
from mlflow.tracking import MlflowClient
from mlflow.types import ColSpec, Schema
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_IS_EXTERNAL, MLFLOW_MODEL_VERSIONS

from dstransformer.errors import without_secrets
from dstransformer.evaluation import Score
from dstransformer.io.files import path_inside
from dstransformer.tracking.mlflow.outbox import Record
from dstransformer.tracking.mlflow.page import bundle_note, checkpoint_note, held_out_split

KEY_TAG = "mlflow.dst_key"  # identifies what a record created, to avoid duplicates; hidden in MLflow's UI
TIME_TAG = "mlflow.dst_time"  # when the record was written, in Unix milliseconds
NOTE_TAG = "mlflow.note.content"

CHECKPOINT = "checkpoint"
BUNDLE = "translation"

#: Values of a checkpoint's tag ``state``.
KEPT, DELETED = "kept", "deleted"

SCORE_TAG = "score"  # of a bundle: the name of the metric that ranks it; of a version: its value too
SIGNATURE_TAG = "signature."  # with the name of a metric after it

BUNDLE_FOLDER = "bundle"
LOADER_MODULE = "dstransformer.exchange.pyfunc"

#: What the loader and the model import. This package itself is not on an index: its code travels with the model.
REQUIREMENTS = (
    "mlflow", "torch", "numpy", "pandas", "sentencepiece", "safetensors", "pydantic", "PyYAML", "pyarrow", "psutil",
    "filelock", "langcodes", "fonttools",
)  # fmt: skip

_EXAMPLE = "A sentence."

MODEL_TAG = "model_id"  # of a version: the logged model, which MLflow's SQL registry does not keep

DESCRIPTION = "Final bundles of `dst train`. The tag `score` of a version has the score that its bundle is ranked by."
MAX_DESCRIPTION = 5000


class RunModels:
    """The logged models of one run. Methods are idempotent, and raise errors of MLflow, the network and the disk."""

    def __init__(self, client: MlflowClient, run_id: str, run_folder: Path, tracking_uri: str) -> None:
        self._client = client
        self._run_id = run_id
        self._run_folder = run_folder
        self._tracking_uri = tracking_uri
        self._experiment = str(client.get_run(run_id).info.experiment_id)

    def add_checkpoint(self, record: Record) -> None:
        """Add a checkpoint with the scores of its weights, and mark deleted ones."""
        same_step = [model for model in self._checkpoints() if _step(model) == record["step"]]
        if any(_time(model) > record["time"] for model in same_step):
            return  # the store refused this record, and the checkpoint was rewritten since
        known = [model for model in same_step if model.tags.get(KEY_TAG) == record["key"]]
        if record["rewritten"] and not known:
            known = [model for model in same_step if model.tags.get("state") == KEPT][:1]
        tags = {"path": record["path"], "sha256": record["sha256"], "step": str(record["step"]), "state": KEPT}
        model = known[0] if known else self._create(record, CHECKPOINT, tags | {MLFLOW_MODEL_IS_EXTERNAL: "true"})
        with tempfile.TemporaryDirectory() as folder:
            description = Path(folder, "MLmodel")
            get_external_mlflow_model_spec(model).save(str(description))
            self._client.log_model_artifact(model.model_id, str(description))
        self._link(model, record["step"])
        self._client.set_logged_model_tags(model.model_id, tags | {NOTE_TAG: checkpoint_note(record)})
        for scores in record["scores"]:
            self.log_scores(model.model_id, scores, record["step"])
        self._client.finalize_logged_model(model.model_id, "READY")
        self.mark_deleted(record, written=model)

    def add_scores(self, record: Record) -> None:
        """Add scores to the checkpoint of an update, if there is one."""
        for model in self._checkpoints():
            if _step(model) == record["step"] and model.tags.get("state") == KEPT:
                self.log_scores(model.model_id, record["scores"], record["step"])

    def mark_deleted(self, record: Record, written: LoggedModel | None = None) -> None:
        """Tag earlier checkpoints as deleted: of updates not in ``record["kept"]``, or replaced by ``written``."""
        for model in self._checkpoints():
            if written is not None and model.model_id == written.model_id:
                continue
            is_replaced = written is not None and _step(model) == record["step"]
            gone = is_replaced or _step(model) not in record["kept"]
            if gone and model.tags.get("state") == KEPT and _time(model) <= record["time"]:
                self._client.set_logged_model_tags(model.model_id, {"state": DELETED})

    def add_bundle(self, record: Record) -> None:
        """Upload a bundle as a model that ``mlflow.pyfunc.load_model`` opens and ``mlflow models serve`` serves."""
        bundle = path_inside(self._run_folder, record["path"])
        if not bundle.is_dir():
            raise FileNotFoundError(f"the bundle {bundle} does not exist")
        model = next(self._search(f"tags.`{KEY_TAG}` = '{record['key']}'"), None)
        if model is None:
            model = self._create(record, BUNDLE, {"path": record["path"]})
        self._client.log_model_artifacts(model.model_id, str(bundle), BUNDLE_FOLDER)
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder, "model")
            self._write_model(files, model.model_id, record)
            self._client.log_model_artifacts(model.model_id, str(files))
        self._link(model, record["step"])
        for part in record["scores"]:
            self.log_scores(model.model_id, part, record["step"])
        note = bundle_note(record["description"], without_secrets(self._tracking_uri), model.model_id)
        tags = {f"{SIGNATURE_TAG}{name}": text for name, text in record["signatures"].items()}
        tags |= {SCORE_TAG: record["main"], NOTE_TAG: note}
        self._client.set_logged_model_tags(model.model_id, tags)
        self._client.finalize_logged_model(model.model_id, "READY")

    def _write_model(self, folder: Path, model_id: str, record: Record) -> None:
        """Write everything of an MLflow model into a new folder but the bundle, which belongs there as ``bundle/``."""
        text = Schema([ColSpec("string")])
        code = folder.with_name(f"{folder.name}-code") / "dstransformer"
        shutil.copytree(Path(__file__).parents[2], code, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        # The local part of a version, 2.13.0+cpu, names a build that the package index does not have.
        pinned = [f"{name}=={version(name).partition('+')[0]}" for name in (*REQUIREMENTS, *record["requirements"])]
        mlflow.pyfunc.save_model(
            str(folder),
            loader_module=LOADER_MODULE,
            code_paths=[str(code)],
            mlflow_model=Model(run_id=self._run_id, model_id=model_id, model_uuid=model_id),
            signature=ModelSignature(inputs=text, outputs=text),
            input_example=[record["example"] or _EXAMPLE],
            pip_requirements=pinned,
            metadata={"step": record["step"], "run": str(self._run_folder.absolute())},
        )
        shutil.rmtree(code.parent)
        description = folder / "MLmodel"
        content = yaml.safe_load(description.read_text(encoding="utf-8"))
        content["flavors"]["python_function"]["data"] = BUNDLE_FOLDER
        description.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")

    def bundle(self, key: str | None) -> LoggedModel:
        """The bundle that a record with this key has added, or the newest one if the key is None.

        Raises:
            LookupError: The run has no such bundle.
        """
        bundles = self._search(f"model_type = '{BUNDLE}'")
        bundle = _newest(model for model in bundles if key in (None, model.tags.get(KEY_TAG)))
        if bundle is None:
            raise LookupError(f"MLflow has no final bundle of {self._run_folder} yet: finish the run with `dst train`")
        return bundle

    def find(self, paths: Sequence[str]) -> str | None:
        """The ID of the newest model with one of these paths; None if there is none."""
        newest = _newest(model for model in self._search() if model.tags.get("path") in paths)
        return None if newest is None else str(newest.model_id)

    def log_scores(self, model_id: str | None, scores: Mapping[str, Any], step: int) -> None:
        """Log scores of a model, or of none, on a dataset: ``metrics`` by name, their ``time`` and the ``dataset``.

        With the time at which the run logged them, they add no second point to its curves.
        """
        dataset = scores.get("dataset") or {}
        metrics = [
            Metric(
                name,
                float(value),
                scores["time"],
                step,
                model_id=model_id,
                dataset_name=dataset.get("name"),
                dataset_digest=dataset.get("digest"),
                run_id=self._run_id,
            )
            for name, value in scores["metrics"].items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def _checkpoints(self) -> list[LoggedModel]:
        """The checkpoints, newest first."""
        return sorted(self._search(f"model_type = '{CHECKPOINT}'"), key=_time, reverse=True)

    def _search(self, condition: str = "") -> Iterator[LoggedModel]:
        query, token = f"source_run_id = '{self._run_id}'{condition and f' AND {condition}'}", None
        while True:
            page = self._client.search_logged_models([self._experiment], query, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _create(self, record: Record, kind: str, tags: Mapping[str, str]) -> LoggedModel:
        return self._client.create_logged_model(
            self._experiment,
            name=record["name"],
            source_run_id=self._run_id,
            tags={**tags, KEY_TAG: record["key"], TIME_TAG: str(record["time"])},
            params={"step": str(record["step"])},
            model_type=kind,
        )

    def _link(self, model: LoggedModel, step: int) -> None:
        """Show the model on the page of the run."""
        outputs = self._client.get_run(self._run_id).outputs.model_outputs
        if model.model_id not in {output.model_id for output in outputs}:
            self._client.log_outputs(self._run_id, [LoggedModelOutput(model.model_id, step)])


def _newest(models: Iterable[LoggedModel]) -> LoggedModel | None:
    return max(models, key=lambda model: int(model.creation_timestamp), default=None)


def _step(model: LoggedModel) -> int:
    return int(model.params.get("step", -1))


def _time(model: LoggedModel) -> int:
    return int(model.tags.get(TIME_TAG, 0))


def register(client: MlflowClient, model: LoggedModel, name: str) -> str:
    """Make a logged bundle a version of the registered model ``name``. Idempotent.

    Returns:
        A line with the version and its score.
    """
    try:
        client.create_registered_model(name, description=DESCRIPTION)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"run_id = '{model.source_run_id}'")
    known = [each.version for each in versions if each.name == name and each.tags.get(MODEL_TAG) == model.model_id]
    version = client.get_model_version(name, known[0]) if known else _create_version(client, model, name)
    score = version.tags.get(SCORE_TAG)
    return f"{name} version {version.version}" + (f": {score}" if score else "")


def _main_score(model: LoggedModel) -> str | None:
    """The score that ranks a logged bundle, ``BLEU 39.04 on test``; None if it has none."""
    name = model.tags.get(SCORE_TAG, "")
    logged = [metric for metric in model.metrics or () if metric.key == name]
    if not logged:
        return None
    split, _, metric_name = name.rpartition("/")
    score = Score(metric_name, max(logged, key=lambda metric: metric.timestamp).value)
    return f"{score.label} {score.number} on {held_out_split(split)}"


def _create_version(client: MlflowClient, model: LoggedModel, name: str) -> ModelVersion:
    score = _main_score(model)
    version = client.create_model_version(
        name,
        model.artifact_location,
        run_id=model.source_run_id,
        tags={MODEL_TAG: model.model_id, **({SCORE_TAG: score} if score else {})},
        description=model.tags.get(NOTE_TAG, "")[:MAX_DESCRIPTION],
        model_id=model.model_id,
    )
    # Show it on the page of the logged model, as an MLflow server does.
    shown = json.loads(client.get_logged_model(model.model_id).tags.get(MLFLOW_MODEL_VERSIONS, "[]"))
    mine = {"name": name, "version": int(version.version)}
    if not any(int(entry["version"]) == mine["version"] and entry["name"] == name for entry in shown):
        client.set_logged_model_tags(model.model_id, {MLFLOW_MODEL_VERSIONS: json.dumps([*shown, mine])})
    return version
