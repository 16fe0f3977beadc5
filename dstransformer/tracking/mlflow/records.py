"""Turns the events of a run into tracking records, which ``MlflowStore`` applies."""

from __future__ import annotations

import json
import math
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dstransformer.config import dump_config
from dstransformer.evaluation import Evaluation
from dstransformer.tracking.events import (
    BundleSaved,
    CheckpointSaved,
    CostTotal,
    EvaluationDone,
    Event,
    NonfiniteUpdate,
    Rollback,
    RunStart,
    RunStatus,
    TrainingProgress,
)
from dstransformer.tracking.mlflow.outbox import Record, unix_ms
from dstransformer.tracking.mlflow.page import (
    FILTER_TAGS,
    RunSummary,
    corpus_dataset,
    default_run_name,
    describe,
    held_out_dataset,
    held_out_split,
    model_name,
    point_stride,
    training_datasets,
)

Scores = dict[str, Any]  # of one evaluation, in a record: metrics, time, dataset

#: Updates with a loss or gradient that is not finite that a process reports to MLflow. ``metrics.jsonl`` has them all.
MAX_NONFINITE_UPDATES = 200

#: Training losses that are remembered until the checkpoint of their update is on disk.
MAX_LOSSES = 100

CHECKPOINTS = "checkpoints"  # the folder of checkpoints in a run folder

#: The columns of the table of sample translations, which has a row for each sentence at each validation.
SAMPLE_COLUMNS = ("step", "source", "reference", "translation")


class Recorder:
    """Turns the events of a run into records, which ``put`` receives. Metrics are ``train/loss``, ``valid/bleu`` …"""

    def __init__(self, run: RunStart, run_folder: Path, put: Callable[[Record], None]) -> None:
        self._run = run
        self._run_folder = run_folder
        self._put_record = put
        self._stride = point_stride(run.config.training.max_updates / run.config.training.log_every)
        self._step = run.resume_step or 0
        self._summary = RunSummary(step=self._step)
        self._logged_signatures: dict[str, Mapping[str, str]] = {}
        self._logged_datasets: set[str] = set()
        self._validated: tuple[int, Scores] | None = None  # step and scores of the last validation
        self._trained: deque[tuple[int, Scores]] = deque(maxlen=MAX_LOSSES)  # steps and training losses
        self._nonfinite_updates = 0
        #: Steps of the checkpoints whose weights this process has known.
        self._checkpoints: set[int] = set() if run.resume_step is None else {run.resume_step}

    def start(self, crashed: Record | None, parent: Mapping[str, str] | None = None) -> None:
        """Record the start of the run and its description. The user's own tags come before the one of a parent run.

        ``crashed`` has ID and last time of an earlier run in this folder that ended without a report.
        """
        run = self._run
        tags = {name: run.tags[name] for name in FILTER_TAGS if name in run.tags}
        if "git_revision" in tags:
            tags["mlflow.source.git.commit"] = tags["git_revision"]
        tags["languages"] = run.manifest.languages
        self._put(
            "start",
            run_name=run.run_name,
            default_name=default_run_name(run, self._run_folder),
            resume=run.resume_step is not None,
            key=uuid.uuid4().hex,
            time=unix_ms(),
            tags={**tags, **(parent or {}), **run.user_tags},
            crashed=crashed,
        )
        self._put_description()
        config = run.config.without_secrets()
        self._put("params", params=flatten(config.model_dump(mode="json")))
        self._put("text", file="config.yaml", text=dump_config(config))
        self._put("text", file="ds_config.json", text=json.dumps(run.ds_config, indent=2) + "\n")
        self._put("text", file="corpus_manifest.json", text=run.manifest.to_json())
        for dataset in training_datasets(run):
            self._put("dataset", **dataset)
        if run.resume_step is not None:
            self._put("checkpoints", kept=steps_in(self._run_folder / CHECKPOINTS), time=unix_ms())

    def record(self, event: Event) -> None:
        """Record an event between start and end of the run."""
        match event:
            case TrainingProgress(step, metrics):
                self._record_training(step, metrics)
            case EvaluationDone(split, step, evaluation):
                self._record_evaluation(split, step, evaluation)
            case CostTotal(step, totals):
                self._record_cost(step, totals)
            case NonfiniteUpdate():
                self._record_nonfinite_update(event)
            case Rollback():
                self._record_rollback(event)
            case CheckpointSaved():
                self._record_checkpoint(event)
            case BundleSaved():
                self._record_bundle(event)

    def record_system_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record ``system/<name>`` metrics at the current update. Thread-safe."""
        self._put_metrics(self._step, metrics)

    def finish(self, status: RunStatus) -> None:
        """Record the end of the run, with its description."""
        self._summary = replace(self._summary, status=status, step=self._step)
        self._put_description()
        self._put("finish", status=status, time=unix_ms())

    def _record_training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record ``train/<name>`` metrics; of a curve of too many points only some."""
        self._step = step
        if not self._is_logged(step):
            return
        time = self._put_metrics(step, {f"train/{name}": value for name, value in metrics.items()})
        if math.isfinite(metrics.get("loss", math.nan)):
            loss = {"train/loss": float(metrics["loss"])}
            self._trained.append((step, {"metrics": loss, "time": time, "dataset": corpus_dataset(self._run)}))

    def _record_evaluation(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Record ``<split>/<name>`` metrics, for the checkpoint of the update too, signatures and samples."""
        self._step = max(self._step, step)
        time = self._put_metrics(step, named_metrics(split, evaluation))
        self._put_evaluation(split, step, evaluation)
        if split == "valid":
            scores = self._scores(split, evaluation, time)
            self._validated = (step, scores)
            if step in self._checkpoints:
                self._put("checkpoint_scores", step=step, scores=scores)

    def _record_cost(self, step: int, totals: Mapping[str, float]) -> None:
        """Record ``cost/<name>`` metrics."""
        self._step = max(self._step, step)
        self._summary = replace(self._summary, cost=totals)
        if self._is_logged(step):
            self._put_metrics(step, {f"cost/{name}": value for name, value in totals.items()})

    def _record_nonfinite_update(self, update: NonfiniteUpdate) -> None:
        """Record a row of the table ``divergence/bad_updates.json``; the first ``MAX_NONFINITE_UPDATES`` only."""
        self._nonfinite_updates += 1
        if self._nonfinite_updates <= MAX_NONFINITE_UPDATES:
            row = [value if key != "pairs" else " ".join(map(str, value)) for key, value in update.to_json().items()]
            columns, file = list(update.to_json()), "divergence/bad_updates.json"
            same = 1 + columns.index("update")  # after a rollback there are other updates of the same steps
            self._put("table", file=file, step=update.step, columns=columns, rows=[row], same=same)

    def _record_rollback(self, rollback: Rollback) -> None:
        """Record ``divergence/rollback-N.json``, and the number of rollbacks as a tag.

        Losses, scores and checkpoints of the abandoned updates are forgotten: later updates have the same steps.
        """
        self._step = rollback.step
        kept = [(step, loss) for step, loss in self._trained if step <= rollback.step]
        self._trained = deque(kept, maxlen=MAX_LOSSES)
        if self._validated is not None and self._validated[0] > rollback.step:
            self._validated = None
        self._checkpoints = {step for step in self._checkpoints if step <= rollback.step}
        text = json.dumps(rollback.to_json(), indent=2) + "\n"
        self._put("text", file=f"divergence/rollback-{rollback.number}.json", text=text)
        self._put("tags", tags={"rollbacks": str(rollback.number)})

    def _record_checkpoint(self, saved: CheckpointSaved) -> None:
        """Record the checkpoint as a model of the run, with loss and scores of its weights, without its content."""
        step = saved.step
        self._step = max(self._step, step)
        scored = [*self._trained, *([] if self._validated is None else [self._validated])]
        self._put(
            "checkpoint",
            name=f"{model_name(self._run, self._run_folder)} step {step}",
            path=str(saved.path.absolute()),
            sha256=saved.sha256,
            step=step,
            scores=[scores for update, scores in scored if update == step],
            kept=sorted({step, *steps_in(saved.path.parent)}),
            rewritten=step in self._checkpoints,
            key=uuid.uuid4().hex,
            time=unix_ms(),
        )
        self._checkpoints.add(step)

    def _record_bundle(self, saved: BundleSaved) -> None:
        """Record a bundle in the run folder as a model of the run, with its scores. Its files are read when it is sent.

        With ``RunStart.register`` it becomes a version of that registered model.
        """
        bundle, step, evaluations = saved.bundle, saved.step, saved.evaluations
        for split, evaluation in evaluations.items():
            self._put_evaluation(split, step, evaluation)
        self._summary = replace(self._summary, step=step, bundle=bundle, evaluations=evaluations)
        key, time = uuid.uuid4().hex, unix_ms()
        samples = [sample for evaluation in evaluations.values() for sample in evaluation.samples]
        main = {split: f"{split}/{evaluation.main.name}" for split, evaluation in evaluations.items()}
        self._put(
            "bundle",
            path=str(bundle.absolute().relative_to(self._run_folder.absolute())),
            name=model_name(self._run, self._run_folder),
            step=step,
            scores=[self._scores(split, evaluation, time) for split, evaluation in evaluations.items()],
            signatures={
                f"{split}/{name}": signature
                for split, evaluation in evaluations.items()
                for name, signature in evaluation.signatures.items()
            },
            main=main.get("final_test") or main.get("final_validation", ""),
            example=samples[0].source if samples else None,
            requirements=list(self._run.manifest.form.requirements),
            description=describe(self._run, self._run_folder, replace(self._summary, status="finished")),
            key=key,
            time=time,
        )
        if self._run.register is not None:
            self._put("register", name=self._run.register, key=key)

    def _scores(self, split: str, evaluation: Evaluation, time: int) -> Scores:
        """The scores of a model, as records hold them."""
        dataset = held_out_dataset(self._run, split, evaluation)
        return {"metrics": named_metrics(split, evaluation), "time": time, "dataset": dataset}

    def _put_evaluation(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Put the dataset, signatures and samples of an evaluation."""
        signatures = evaluation.signatures
        if signatures and self._logged_signatures.get(split) != signatures:
            self._logged_signatures[split] = signatures
            self._put("text", file=f"signatures/{split}.json", text=json.dumps(signatures, indent=2) + "\n")
        if evaluation.drawing:
            self._put("text", file=f"samples/{split}-step-{step:08d}.txt", text=evaluation.drawing)
        elif evaluation.samples:
            rows = [[step, sample.source, sample.reference, sample.translation] for sample in evaluation.samples]
            self._put("table", file=f"samples/{split}.json", step=step, columns=SAMPLE_COLUMNS, rows=rows)
        dataset = held_out_dataset(self._run, split, evaluation)
        if dataset is not None and dataset["name"] not in self._logged_datasets:
            self._logged_datasets.add(dataset["name"])
            context = held_out_split(split)
            info = self._run.manifest.splits.get(context)
            profile = {} if info is None else {"pairs": info.pairs}
            self._put("dataset", **dataset, path=str(self._run.corpus.absolute()), profile=profile, context=context)

    def _put_description(self) -> None:
        text = describe(self._run, self._run_folder, self._summary)
        self._put("tags", tags={"mlflow.note.content": text})

    def _put_metrics(self, step: int, metrics: Mapping[str, float]) -> int:
        """Put metrics. Returns their time in Unix milliseconds."""
        now = unix_ms()
        self._put("metrics", metrics=[[name, float(value), now, step] for name, value in metrics.items()])
        return now

    def _put(self, op: str, **values: Any) -> None:
        self._put_record({"op": op, **values})

    def _is_logged(self, step: int) -> bool:
        """Whether MLflow gets the training metrics of a step."""
        training = self._run.config.training
        return step // training.log_every % self._stride == 0 or step >= training.max_updates


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten a nested mapping to dotted names. Strings are kept, all other values become JSON."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def named_metrics(split: str, evaluation: Evaluation) -> dict[str, float]:
    """The values of an evaluation under their names in MLflow: ``valid/bleu``."""
    return {f"{split}/{name}": value for name, value in evaluation.metrics.items()}


def steps_in(checkpoints: Path) -> list[int]:
    """The updates of the checkpoints in a folder, in order."""
    names = (path.name.removeprefix("step-") for path in checkpoints.glob("step-*"))
    return sorted(int(name) for name in names if name.isdigit())
