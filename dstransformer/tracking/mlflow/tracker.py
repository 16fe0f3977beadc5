"""The MLflow tracker. It never delays training: events put records into the outbox, and a thread sends them."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    RunEnd,
    RunStart,
    RunStatus,
    Tracker,
    TrainingProgress,
)
from dstransformer.tracking.metrics_log import METRICS_NAME, first_time
from dstransformer.tracking.mlflow.location import TrackingState
from dstransformer.tracking.mlflow.outbox import OUTBOX_NAME, Outbox
from dstransformer.tracking.mlflow.page import (
    FILTER_TAGS,
    RunSummary,
    checkpoint_name,
    default_run_name,
    describe,
    model_name,
    public_address,
)
from dstransformer.tracking.mlflow.records import (
    SAMPLE_COLUMNS,
    corpus_dataset,
    draw_samples,
    flatten,
    held_out_dataset,
    held_out_record,
    named_metrics,
    named_signatures,
    point_stride,
    sample_rows,
    steps_in,
    training_datasets,
    unix_ms,
)
from dstransformer.tracking.mlflow.sender import Sender, StoreUnreachableError, crashed_run, quiet_libraries

if TYPE_CHECKING:
    from dstransformer.tracking.mlflow.store import SystemMetrics

logger = logging.getLogger(__name__)

Scores = dict[str, Any]  # of one evaluation, in a record: metrics, time, dataset

FLUSH_SECONDS = 1.0
RETRY_SECONDS = 15.0
FINISH_SECONDS: Mapping[RunStatus, float] = {"finished": 60.0, "failed": 10.0, "killed": 10.0}
SYSTEM_METRICS_SECONDS = 10.0
#: Updates with a loss or gradient that is not finite of which a process tells MLflow. ``metrics.jsonl`` has them all.
MAX_NONFINITE_UPDATES = 200

#: Training losses that are remembered until the checkpoint of their update is on disk.
MAX_LOSSES = 100

CHECKPOINTS = "checkpoints"  # the folder of checkpoints in a run folder


class MlflowTracker(Tracker):
    """Tracks a run folder as one MLflow run, also across resumes.

    No event waits for the store, except ``RunEnd``, which waits at most ``FINISH_SECONDS``. None raises its errors.
    While the run folder cannot be written, records are held in memory; only ``RunStart`` raises OSError then. Metric
    names in MLflow are ``train/loss``, ``valid/bleu`` and so on.
    """

    name = "MLflow tracking"

    def __init__(
        self,
        run_folder: Path,
        tracking_uri: str,
        experiment: str,
        *,
        system_metrics: bool = True,
        flush_seconds: float = FLUSH_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        system_metrics_seconds: float = SYSTEM_METRICS_SECONDS,
        announce: Callable[[str], None] = logger.info,
    ) -> None:
        self._run_folder = run_folder
        self._state = TrackingState(tracking_uri, experiment)
        self._with_system_metrics = system_metrics
        self._flush_seconds = flush_seconds
        self._retry_seconds = retry_seconds
        self._system_metrics_seconds = system_metrics_seconds
        self._announce = announce
        self._outbox = Outbox(run_folder)
        self._run: RunStart | None = None
        self._summary = RunSummary()
        self._logged_signatures: dict[str, Mapping[str, str]] = {}
        self._logged_datasets: set[str] = set()
        self._validated: tuple[int, Scores] | None = None  # step and scores of the last validation
        self._trained: deque[tuple[int, Scores]] = deque(maxlen=MAX_LOSSES)  # steps and training losses
        self._nonfinite_updates = 0
        self._checkpoints: set[int] = set()  # steps of the checkpoints whose weights this process has known
        self._stride = 1
        self._page: str | None = None
        self._registered: str | None = None
        self._step = 0
        self._finishing = threading.Event()
        self._store_down = False
        self._retry_at = 0.0
        self._worker: threading.Thread | None = None

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``."""
        match event:
            case RunStart():
                self._start(event)
            case TrainingProgress(step, metrics):
                self._log_training(step, metrics)
            case EvaluationDone(split, step, evaluation):
                self._log_evaluation(split, step, evaluation)
            case CostTotal(step, totals):
                self._log_cost(step, totals)
            case NonfiniteUpdate():
                self._log_nonfinite_update(event)
            case Rollback():
                self._log_rollback(event)
            case CheckpointSaved():
                self._log_checkpoint(event)
            case BundleSaved():
                self._log_bundle(event)
            case RunEnd(status):
                self._end(status)

    def _start(self, run: RunStart) -> None:
        """Record the description of the run and start sending. A resumed run continues the MLflow run of its folder."""
        self._run = run
        self._step = run.resume_step or 0
        self._summary = RunSummary(step=self._step)
        resume = run.resume_step is not None
        self._stride = point_stride(run.config.training.max_updates / run.config.training.log_every)
        crashed = None
        if run.resume_step is not None:
            self._state = self._state.with_stored_run_id(self._run_folder)
            self._checkpoints.add(run.resume_step)
        else:
            crashed = crashed_run(self._run_folder, self._outbox, self._state)
            if leftovers := self._outbox.pending():
                logger.warning("dropping %d unsent tracking records of an earlier run in this folder", leftovers)
            self._outbox.clear()
        self._state.save(self._run_folder)
        tags = {name: run.tags[name] for name in FILTER_TAGS if name in run.tags}
        if "git_revision" in tags:
            tags["mlflow.source.git.commit"] = tags["git_revision"]
        tags["languages"] = f"{run.manifest.src_lang}-{run.manifest.tgt_lang}"
        tags |= run.user_tags
        self._put(
            "start",
            run_name=run.run_name,
            default_name=default_run_name(run, self._run_folder),
            resume=resume,
            key=uuid.uuid4().hex,
            time=unix_ms(),
            tags=tags,
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
        if resume:
            self._put("checkpoints", kept=steps_in(self._run_folder / CHECKPOINTS), time=unix_ms())
        self._worker = threading.Thread(target=self._send_records, name="mlflow-sender", daemon=True)
        self._worker.start()

    def _log_training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log ``train/<name>`` metrics; of a curve of too many points only some."""
        self._step = step
        if not self._is_shown(step):
            return
        time = self._put_metrics(step, {f"train/{name}": value for name, value in metrics.items()})
        if self._run is not None and math.isfinite(metrics.get("loss", math.nan)):
            loss = {"train/loss": float(metrics["loss"])}
            self._trained.append((step, {"metrics": loss, "time": time, "dataset": corpus_dataset(self._run)}))

    def _log_evaluation(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Log ``<split>/<name>`` metrics, for the checkpoint of the update too, signatures and a table of samples."""
        self._step = max(self._step, step)
        time = self._put_metrics(step, named_metrics(split, evaluation))
        self._put_evaluation(split, step, evaluation)
        scores = self._scores(split, evaluation, time)
        if split == "valid":
            self._validated = (step, scores)
            if step in self._checkpoints:
                self._put("checkpoint_scores", step=step, scores=scores)

    def _scores(self, split: str, evaluation: Evaluation, time: int) -> Scores:
        """The scores of a model, as records hold them: metrics, time and dataset."""
        assert self._run is not None
        dataset = held_out_dataset(self._run, split, evaluation)
        return {"metrics": named_metrics(split, evaluation), "time": time, "dataset": dataset}

    def _put_evaluation(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Log what was evaluated, signatures and samples."""
        signatures = evaluation.signatures
        if signatures and self._logged_signatures.get(split) != signatures:
            self._logged_signatures[split] = signatures
            self._put("text", file=f"signatures/{split}.json", text=json.dumps(signatures, indent=2) + "\n")
        if evaluation.samples and evaluation.are_trees:
            self._put("text", file=f"samples/{split}-step-{step:08d}.txt", text=draw_samples(evaluation.samples))
        elif evaluation.samples:
            rows = sample_rows(step, evaluation.samples)
            self._put("table", file=f"samples/{split}.json", step=step, columns=SAMPLE_COLUMNS, rows=rows)
        self._put_held_out(split, evaluation)

    def _put_held_out(self, split: str, evaluation: Evaluation) -> None:
        assert self._run is not None
        dataset = held_out_record(self._run, split, evaluation)
        if dataset is not None and dataset["name"] not in self._logged_datasets:
            self._logged_datasets.add(dataset["name"])
            self._put("dataset", **dataset)

    def _log_cost(self, step: int, totals: Mapping[str, float]) -> None:
        """Log ``cost/<name>`` metrics."""
        self._step = max(self._step, step)
        self._summary = replace(self._summary, cost=totals)
        if self._is_shown(step):
            self._put_metrics(step, {f"cost/{name}": value for name, value in totals.items()})

    def _log_nonfinite_update(self, update: NonfiniteUpdate) -> None:
        """Log a row of the table ``divergence/bad_updates.json``; the first ``MAX_NONFINITE_UPDATES`` only."""
        self._nonfinite_updates += 1
        if self._nonfinite_updates <= MAX_NONFINITE_UPDATES:
            row = [value if key != "pairs" else " ".join(map(str, value)) for key, value in update.to_json().items()]
            columns, file = list(update.to_json()), "divergence/bad_updates.json"
            same = 1 + columns.index("update")  # after a rollback there are other updates of the same steps
            self._put("table", file=file, step=update.step, columns=columns, rows=[row], same=same)

    def _log_rollback(self, rollback: Rollback) -> None:
        """Log ``divergence/rollback-N.json``, and the number of rollbacks as a tag."""
        self._step = rollback.step
        text = json.dumps(rollback.to_json(), indent=2) + "\n"
        self._put("text", file=f"divergence/rollback-{rollback.number}.json", text=text)
        self._put("tags", tags={"rollbacks": str(rollback.number)})

    def _log_checkpoint(self, saved: CheckpointSaved) -> None:
        """Log the checkpoint as a model of the run, with loss and scores of its weights, without its content."""
        assert self._run is not None
        step = saved.step
        self._step = max(self._step, step)
        scored = [*list(self._trained), *([] if self._validated is None else [self._validated])]
        self._put(
            "checkpoint",
            name=checkpoint_name(self._run, self._run_folder, step),
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

    def _log_bundle(self, saved: BundleSaved) -> None:
        """Log a bundle in the run folder as a model of the run, with its scores. Its files are read when they are sent.

        With ``RunStart.register`` it becomes a version of that registered model.
        """
        assert self._run is not None
        bundle, step, evaluations = saved.bundle, saved.step, saved.evaluations
        for split, evaluation in evaluations.items():
            self._put_evaluation(split, step, evaluation)
        self._summary = replace(self._summary, step=step, bundle=bundle, evaluations=evaluations)
        key, time = uuid.uuid4().hex, unix_ms()
        samples = [sample for evaluation in evaluations.values() for sample in evaluation.samples]
        signatures = [named_signatures(split, evaluation) for split, evaluation in evaluations.items()]
        main = {split: f"{split}/{evaluation.main.name}" for split, evaluation in evaluations.items()}
        self._put(
            "bundle",
            path=str(bundle.absolute().relative_to(self._run_folder.absolute())),
            name=model_name(self._run, self._run_folder),
            step=step,
            scores=[self._scores(split, evaluation, time) for split, evaluation in evaluations.items()],
            signatures={name: text for part in signatures for name, text in part.items()},
            main=main.get("final_test") or main.get("final_validation", ""),
            example=samples[0].source if samples else None,
            trees=self._run.manifest.trees is not None,
            description=describe(self._run, self._run_folder, replace(self._summary, status="finished")),
            key=key,
            time=time,
        )
        if self._run.register is not None:
            self._put("register", name=self._run.register, key=key)

    def _end(self, status: RunStatus) -> None:
        """Send the remaining records and end the MLflow run. Records not sent in time stay in the run folder."""
        try:
            if self._run is not None:
                self._summary = replace(self._summary, status=status, step=self._step)
                self._put_description()
                self._put("plot", file="plots/training.png", title=self._run.run_name or str(self._run_folder))
            self._put("finish", status=status, time=unix_ms())
        finally:
            self._finishing.set()
        if self._worker is not None:
            self._worker.join(FINISH_SECONDS[status])
        self._outbox.flush()
        if self._registered is not None:
            self._announce(f"MLflow: {self._registered}")
        if self._page is not None:
            self._announce(self._page)
        if lost := self._outbox.held:
            logger.warning("%d tracking records are lost: %s has no room for them", lost, self._run_folder)
        if left := self._outbox.pending() - lost:
            logger.warning(
                "%d tracking records were not sent to %s and are kept in %s: send them with `dst track %s`",
                left,
                public_address(self._state.tracking_uri),
                self._run_folder / OUTBOX_NAME,
                self._run_folder,
            )

    def _put_description(self) -> None:
        assert self._run is not None
        text = describe(self._run, self._run_folder, self._summary)
        self._put("tags", tags={"mlflow.note.content": text})

    def _put(self, op: str, **values: Any) -> None:
        self._outbox.put_or_hold({"op": op, **values})

    def _put_metrics(self, step: int, metrics: Mapping[str, float]) -> int:
        """Put metrics into the outbox. Returns their time in Unix milliseconds."""
        now = unix_ms()
        self._put("metrics", metrics=[[name, float(value), now, step] for name, value in metrics.items()])
        return now

    def _is_shown(self, step: int) -> bool:
        """Whether MLflow gets the training metrics of a step."""
        assert self._run is not None
        training = self._run.config.training
        return step // training.log_every % self._stride == 0 or step >= training.max_updates

    def _send_records(self) -> None:
        sender = Sender(self._state, self._run_folder, self._outbox)
        monitor: SystemMetrics | None = None
        while True:
            finishing = self._finishing.is_set()
            if finishing and monitor is not None:
                monitor.stop()
            self._outbox.flush()
            self._send_pending(sender, last_try=finishing)
            self._registered = sender.registered
            if self._page is None and sender.page is not None:
                self._page = sender.page
                if not self._finishing.is_set():  # _end announces it as well
                    self._announce(self._page)
            if finishing:
                return
            if monitor is None and self._with_system_metrics and sender.run_id is not None and not self._store_down:
                monitor = self._start_monitor(sender.run_id)
            self._finishing.wait(self._flush_seconds)

    def _send_pending(self, sender: Sender, *, last_try: bool) -> None:
        due = last_try or time.monotonic() >= self._retry_at
        if self._store_down and not due:
            return
        try:
            sender.send(retry_refused=due)
        except (StoreUnreachableError, OSError) as error:
            if not self._store_down:
                logger.warning(
                    "%s does not accept tracking records; training continues and they are kept in %s: %s",
                    public_address(self._state.tracking_uri),
                    self._run_folder / OUTBOX_NAME,
                    error,
                )
            self._store_down = True
        else:
            if self._store_down:
                logger.warning("%s accepts tracking records again", public_address(self._state.tracking_uri))
            self._store_down = False
        finally:
            if due:
                self._retry_at = time.monotonic() + self._retry_seconds

    def _start_monitor(self, run_id: str) -> SystemMetrics | None:
        from dstransformer.tracking.mlflow.store import SystemMetrics

        self._with_system_metrics = False
        try:
            with quiet_libraries():
                return SystemMetrics(
                    run_id,
                    self._state.tracking_uri,
                    lambda metrics: self._put_metrics(self._step, metrics),
                    self._system_metrics_seconds,
                    first_time(self._run_folder / METRICS_NAME),
                )
        except Exception as error:
            logger.warning("cannot measure system metrics: %r", error)
            return None
