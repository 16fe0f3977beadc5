"""The MLflow tracker. It never delays training: calls put records into the spool, and a thread sends them."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstransformer.config import dump_config
from dstransformer.corpus import Manifest
from dstransformer.evaluation import Evaluation, Sample
from dstransformer.parsing.trees import parse_tree
from dstransformer.tracking.courier import Courier, StoreUnreachableError
from dstransformer.tracking.location import TrackingState
from dstransformer.tracking.page import (
    FILTER_TAGS,
    Outcome,
    dataset_name,
    default_run_name,
    describe,
    model_name,
    public_address,
)
from dstransformer.tracking.spool import FOLDER_NAME, Spool, unix_ms
from dstransformer.tracking.tracker import RunStart, RunStatus, Tracker

if TYPE_CHECKING:
    from dstransformer.tracking.system_metrics import SystemMetrics

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
RETRY_SECONDS = 15.0
FINISH_SECONDS: Mapping[RunStatus, float] = {"finished": 60.0, "failed": 10.0, "killed": 10.0}
SYSTEM_METRICS_SECONDS = 10.0


class MlflowTracker(Tracker):
    """Tracks a run folder as one MLflow run, also across resumes.

    No method waits for the store, except ``finish``, which waits at most ``FINISH_SECONDS``. None raises its errors.
    Methods raise OSError if the run folder cannot be written. Metric names in MLflow are ``train/loss``, ``valid/bleu``
    and so on.
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
        self._spool = Spool(run_folder)
        self._run: RunStart | None = None
        self._outcome = Outcome()
        self._logged_signatures: dict[str, Mapping[str, str]] = {}
        self._page: str | None = None
        self._step = 0
        self._finishing = threading.Event()
        self._store_down = False
        self._retry_at = 0.0
        self._worker: threading.Thread | None = None

    def start(self, run: RunStart) -> None:
        """Record the description of the run and start sending. A resumed run continues the MLflow run of its folder."""
        self._run = run
        self._step = run.resume_step or 0
        self._outcome = Outcome(step=self._step)
        resume = run.resume_step is not None
        if resume:
            self._state = self._state.with_stored_run_id(self._run_folder)
        else:
            if leftovers := self._spool.pending():
                logger.warning("dropping %d unsent tracking records of an earlier run in this folder", len(leftovers))
            self._spool.clear()
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
        )
        self._put_description()
        self._put("params", params=flatten(run.config.model_dump(mode="json")))
        self._put("text", file="config.yaml", text=dump_config(run.config))
        self._put("text", file="ds_config.json", text=json.dumps(run.ds_config, indent=2) + "\n")
        self._put("text", file="corpus_manifest.json", text=run.manifest.to_json())
        self._put(
            "dataset",
            name=dataset_name(run),
            digest=manifest_digest(run.manifest),
            path=str(run.corpus.absolute()),
            profile=_profile(run.manifest),
        )
        self._worker = threading.Thread(target=self._send_records, name="mlflow-courier", daemon=True)
        self._worker.start()

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log ``train/<name>`` metrics."""
        self._step = step
        self._put_metrics(step, {f"train/{name}": value for name, value in metrics.items()})

    def log_eval(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Log ``<split>/<name>`` metrics, and as artifacts the signatures and the samples (shown as a table)."""
        self._step = max(self._step, step)
        self._put_metrics(step, {f"{split}/{name}": value for name, value in evaluation.metrics.items()})
        self._put_signatures_and_samples(split, step, evaluation)

    def _put_signatures_and_samples(self, split: str, step: int, evaluation: Evaluation) -> None:
        signatures = evaluation.signatures
        if signatures and self._logged_signatures.get(split) != signatures:
            self._logged_signatures[split] = signatures
            self._put("text", file=f"signatures/{split}.json", text=json.dumps(signatures, indent=2) + "\n")
        if evaluation.samples:
            name = f"samples/{split}-step-{step:08d}"
            if evaluation.are_trees:
                self._put("text", file=f"{name}.txt", text=_draw_samples(evaluation.samples))
            else:
                self._put("text", file=f"{name}.csv", text=_samples_csv(evaluation.samples))

    def log_cost(self, step: int, totals: Mapping[str, float]) -> None:
        """Log ``cost/<name>`` metrics."""
        self._step = max(self._step, step)
        self._outcome = replace(self._outcome, cost=totals)
        self._put_metrics(step, {f"cost/{name}": value for name, value in totals.items()})

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """Log the path, hash and score of the checkpoint, not its content."""
        self._step = max(self._step, step)
        description = {"path": str(path), "sha256": sha256, "step": step, "score": score}
        text = json.dumps(description, indent=2) + "\n"
        self._put("text", file=f"checkpoints/step-{step:08d}.json", text=text)

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Log the bundle as a model of the run, with its scores. Its files are read later, when they are sent."""
        metrics = {
            f"{split}/{name}": value
            for split, evaluation in evaluations.items()
            for name, value in evaluation.metrics.items()
        }
        for split, evaluation in evaluations.items():
            self._put_signatures_and_samples(split, step, evaluation)
        in_run_folder = bundle.absolute().is_relative_to(self._run_folder.absolute())
        path = bundle.absolute().relative_to(self._run_folder.absolute()) if in_run_folder else bundle.absolute()
        assert self._run is not None
        name = model_name(self._run, self._run_folder)
        key = uuid.uuid4().hex
        self._put("bundle", path=str(path), name=name, step=step, metrics=metrics, key=key, time=unix_ms())
        self._outcome = replace(self._outcome, step=step, bundle=bundle, evaluations=evaluations)

    def finish(self, status: RunStatus) -> None:
        """Send the remaining records and end the MLflow run. Records not sent in time stay in the run folder."""
        try:
            if self._run is not None:
                self._outcome = replace(self._outcome, status=status, step=self._step)
                self._put_description()
                self._put("plot", file="plots/training.png", title=self._run.run_name or str(self._run_folder))
            self._put("finish", status=status, time=unix_ms())
        finally:
            self._finishing.set()
        if self._worker is not None:
            self._worker.join(FINISH_SECONDS[status])
        self._spool.close()
        if self._page is not None:
            self._announce(self._page)
        if left := len(self._spool.pending()):
            logger.warning(
                "%d tracking records were not sent to %s and are kept in %s: send them with `dst track %s`",
                left,
                public_address(self._state.tracking_uri),
                self._run_folder / FOLDER_NAME,
                self._run_folder,
            )

    def _put_description(self) -> None:
        assert self._run is not None
        text = describe(self._run, self._run_folder, self._outcome)
        self._put("tags", tags={"mlflow.note.content": text})

    def _put(self, op: str, **values: Any) -> None:
        self._spool.put({"op": op, **values})

    def _put_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        now = unix_ms()
        self._put("metrics", metrics=[[name, float(value), now, step] for name, value in metrics.items()])

    def _send_records(self) -> None:
        courier = Courier(self._state, self._run_folder, self._spool)
        monitor: SystemMetrics | None = None
        while True:
            finishing = self._finishing.is_set()
            if finishing and monitor is not None:
                monitor.stop()
            self._deliver(courier, last_try=finishing)
            if self._page is None and courier.page is not None:
                self._page = courier.page
                if not self._finishing.is_set():  # finish announces it as well
                    self._announce(self._page)
            if finishing:
                return
            if monitor is None and self._with_system_metrics and courier.run_id is not None and not self._store_down:
                monitor = self._start_monitor(courier.run_id)
            self._finishing.wait(self._flush_seconds)

    def _deliver(self, courier: Courier, *, last_try: bool) -> None:
        due = last_try or time.monotonic() >= self._retry_at
        if self._store_down and not due:
            return
        try:
            courier.deliver(retry_refused=due)
        except (StoreUnreachableError, OSError) as error:
            if not self._store_down:
                logger.warning(
                    "%s does not accept tracking records; training continues and they are kept in %s: %s",
                    public_address(self._state.tracking_uri),
                    self._run_folder / FOLDER_NAME,
                    error,
                )
            self._store_down = True
            with contextlib.suppress(OSError):  # disk full: leave the records as they are
                self._spool.compact()
        else:
            if self._store_down:
                logger.warning("%s accepts tracking records again", public_address(self._state.tracking_uri))
            self._store_down = False
        finally:
            if due:
                self._retry_at = time.monotonic() + self._retry_seconds

    def _start_monitor(self, run_id: str) -> SystemMetrics | None:
        from dstransformer.tracking.system_metrics import SystemMetrics

        self._with_system_metrics = False
        try:
            return SystemMetrics(
                run_id,
                self._state.tracking_uri,
                lambda metrics: self._put_metrics(self._step, metrics),
                self._system_metrics_seconds,
            )
        except Exception as error:
            logger.warning("cannot measure system metrics: %r", error)
            return None


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


def manifest_digest(manifest: Manifest) -> str:
    """A hash of the content of all shards (32 hexadecimal digits), independent of how and where they were built."""
    digest = hashlib.sha256()
    for split, info in sorted(manifest.splits.items()):
        for shard in info.shards:
            digest.update(f"{split}/{shard.name} {shard.sha256}\n".encode())
    return digest.hexdigest()[:32]


def _profile(manifest: Manifest) -> dict[str, Any]:
    """The sizes that MLflow shows for a dataset."""
    return {
        "languages": f"{manifest.src_lang}-{manifest.tgt_lang}",
        "vocab_size": manifest.tokenizer.vocab_size,
        "pairs": {name: split.pairs for name, split in manifest.splits.items()},
        "src_tokens": {name: split.src_tokens for name, split in manifest.splits.items()},
        "tgt_tokens": {name: split.tgt_tokens for name, split in manifest.splits.items()},
    }


def _draw_samples(samples: Sequence[Sample]) -> str:
    """Sentences with the gold tree and the parser's, drawn by indentation."""
    blocks = []
    for sample in samples:
        gold, parsed = (parse_tree(text).draw() for text in (sample.reference, sample.translation))
        blocks.append(f"{sample.source}\n\ngold:\n{gold}\n\nparsed:\n{parsed}\n")
    return "\n\n".join(blocks)


def _samples_csv(samples: Sequence[Sample]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["source", "reference", "translation"])
    writer.writerows([sample.source, sample.reference, sample.translation] for sample in samples)
    return text.getvalue()
