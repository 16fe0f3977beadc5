"""Curves beside MLflow, ``tracking.also``: TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstransformer.io.files import replace_file
from dstransformer.io.json_text import read_record
from dstransformer.tracking.events import (
    BundleSaved,
    CostTotal,
    EvaluationDone,
    Event,
    Rollback,
    RunEnd,
    RunStart,
    Tracker,
    TrainingProgress,
)
from dstransformer.tracking.mlflow.location import resolve_experiment


class CurveTracker(Tracker):
    """Adds the metrics of each event to curves, under MLflow's names: ``train/loss``, ``valid/bleu``."""

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``."""
        match event:
            case RunStart():
                self.start(event)
            case TrainingProgress(step, metrics):
                self._add("train", step, metrics)
            case EvaluationDone(split, step, evaluation):
                self._add(split, step, evaluation.metrics)
            case CostTotal(step, totals):
                self._add("cost", step, totals)
            case BundleSaved(_, step, evaluations):
                for split, evaluation in evaluations.items():
                    self._add(split, step, evaluation.metrics)
            case Rollback(step=step):
                self.go_back(step)
            case RunEnd(status):
                self.end(failed=status == "failed")

    def _add(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        self.add(step, {f"{kind}/{name}": value for name, value in metrics.items()})

    def start(self, run: RunStart) -> None:
        """Begin, or continue a run that resumes."""
        raise NotImplementedError

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve, without waiting for a network."""
        raise NotImplementedError

    def go_back(self, step: int) -> None:
        """Later points follow those of this update, from which training goes on."""

    def end(self, *, failed: bool) -> None:
        """Write what is left."""
        raise NotImplementedError


class TensorBoard(CurveTracker):
    """Writes the files of TensorBoard to ``tensorboard`` in the run folder."""

    name = "TensorBoard"

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "tensorboard"
        self._writer: Any = None

    def start(self, run: RunStart) -> None:
        """See ``CurveTracker``."""
        self._open(run.resume_step)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """See ``CurveTracker``."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def go_back(self, step: int) -> None:
        """See ``CurveTracker``."""
        self._writer.close()
        self._open(step)

    def _open(self, step: int | None) -> None:
        """Begin a file. TensorBoard leaves out earlier points of updates after ``step``, which are computed again."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=None if step is None else step + 1)

    def end(self, *, failed: bool) -> None:  # noqa: ARG002
        """See ``CurveTracker``."""
        self._writer.close()


class WeightsAndBiases(CurveTracker):
    """Logs to Weights & Biases: online where ``WANDB_API_KEY`` is set, else to ``wandb`` in the run folder."""

    name = "Weights & Biases"

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._run: Any = None

    def start(self, run: RunStart) -> None:
        """See ``CurveTracker``. The id of the run is kept in ``wandb.json``."""
        import wandb

        logging.getLogger("wandb").setLevel(logging.ERROR)
        identity = self._folder / "wandb.json"
        if run.resume_step is not None and identity.is_file():
            number = str(read_record(identity, dict).get("id"))
        else:
            number = secrets.token_hex(8)
            replace_file(identity, json.dumps({"id": number}) + "\n")
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=run.config.tracking.experiment or os.environ.get("WANDB_PROJECT") or resolve_experiment(None),
            name=run.run_name,
            id=number,
            resume="allow",
            dir=str(self._folder),
            mode=mode,
            config=run.config.without_secrets().model_dump(),
            tags=[f"{name}={value}" for name, value in run.user_tags.items()],
            settings=wandb.Settings(console="off", silent=True),
        )

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """See ``CurveTracker``. The step is a metric too, as Weights & Biases takes none that is smaller again."""
        self._run.log({**metrics, "update": step})

    def end(self, *, failed: bool) -> None:
        """See ``CurveTracker``."""
        self._run.finish(exit_code=int(failed))


#: The trackers of ``tracking.also`` by their names there, which are those of their packages.
CURVES = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
