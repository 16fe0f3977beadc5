"""The training loop."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dstransformer.config import Config
from dstransformer.data.loader import Update
from dstransformer.distributed.supervision.failure_detection import UPDATE
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.supervision.stop_signals import StopRequested
from dstransformer.errors import DivergedError, counted
from dstransformer.evaluation import Evaluation, Score
from dstransformer.evaluation.validation import Validator
from dstransformer.tracking.events import (
    CostTotal,
    EvaluationDone,
    EvaluationProgress,
    Message,
    Tracker,
    TrainingProgress,
    UpdateDone,
)
from dstransformer.training.checkpoints.format import Checkpoint, TrainState
from dstransformer.training.checkpoints.manager import CheckpointManager
from dstransformer.training.early_stopping import EarlyStopping
from dstransformer.training.engine import Engine, Step
from dstransformer.training.experiment import Experiment
from dstransformer.training.metrics import CostMeter, TrainingMetrics
from dstransformer.training.recovery import Recovery
from dstransformer.training.update_stream import UpdateStream


@dataclass(kw_only=True, eq=False)
class Trainer:
    """Trains one model. Every rank has a trainer, and all ranks do the same in the same order. See ``build_trainer``.

    Attributes:
        experiment: What is trained, on which corpus.
        state: Step, position in the data and layout. The collaborators hold the rest; see ``_current_state``.
        engine: Computes updates.
        data: The updates.
        validator: Evaluates weights.
        checkpoints: The checkpoints of the run.
        recovery: What to do when a loss or gradient is not finite.
        early_stopping: When to end before the last update.
        metrics: The training metrics between two log records.
        cost: What the updates cost.
        tracker: Receives the events of the run.
        session: The process group, stop requests and monitoring.
        evaluation: The validation of the current weights; None if this process has not evaluated them.
        score: The score of the current weights, possibly from the checkpoint; None if they have not been evaluated.
    """

    experiment: Experiment
    state: TrainState
    engine: Engine
    data: UpdateStream
    validator: Validator
    checkpoints: CheckpointManager
    recovery: Recovery
    early_stopping: EarlyStopping
    metrics: TrainingMetrics
    cost: CostMeter
    tracker: Tracker
    session: Session
    evaluation: Evaluation | None = field(default=None, init=False)
    score: Score | None = field(default=None, init=False)

    def fit(self) -> bool:
        """Train to the last update. On a stop request, finish the current update and save a checkpoint.

        If a checkpoint cannot be written, a warning is logged and it is tried again later; only the last one must be.

        Returns:
            True if training is complete, and its last checkpoint is saved with a score; False if it was stopped.

        Raises:
            DivergedError: Training diverged, and no rollback is left. Earlier checkpoints are intact.
            StorageError: The last checkpoint could not be saved, or the run was stopped before any was.
        """
        self.cost.start_clock()
        try:
            self._train()
        except StopRequested:
            self.checkpoints.raise_if_nothing_saved()
            return False
        return True

    def _train(self) -> None:
        if self.experiment.pretrained is not None and self.state.step == 0:
            self._score_start()
        self._validate_if_missed()
        while True:
            try:
                if self.is_finished:
                    self._save_last()
                    return
                self.session.report(self.state.step + 1, UPDATE)
                update = self.data.next()
                result = self.engine.step(update, self.state.step + 1)
                flags = self.session.combine_flags(
                    save=self.checkpoints.is_due,
                    writing=self.checkpoints.is_writing,
                    nonfinite=not result.finite,
                )
                self._advance(update, result, nonfinite=flags.nonfinite)
                if not flags.writing:
                    self.checkpoints.finish()
                self.recovery.record(self.state.step, update, result, nonfinite=flags.nonfinite)
                if _is_due(self.state.step, self.config.training.log_every):
                    self._log()
                try:
                    if flags.stop:
                        raise StopRequested
                    if self.is_finished or _is_due(self.state.step, self.config.validation.every):
                        self._validate()
                except StopRequested:
                    self._save(interim=not self._is_worth_keeping(due=flags.save))
                    self.checkpoints.finish()
                    raise
                if self._is_worth_keeping(due=flags.save):
                    self._save(interim=False)
            except DivergedError as error:
                self._load(self.recovery.roll_back(error, self._current_state()))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint, as if the run had never stopped.

        Args:
            checkpoint: A checkpoint of the same corpus and model, from any number of processes.
        """
        self.session.report(checkpoint.state.step, "loading a checkpoint")
        self._load(checkpoint)
        self.cost.resume(checkpoint.state.cost)
        self.checkpoints.resume_from(checkpoint)

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.experiment.config

    @property
    def is_finished(self) -> bool:
        """Whether the last update is computed."""
        return self.state.step >= self.config.training.max_updates or self.early_stopping.is_over

    def _load(self, checkpoint: Checkpoint) -> None:
        """Load weights, moments and state."""
        state, layout = checkpoint.state, self.state
        self.engine.load(checkpoint.shards, state.step, state.engine)
        self.state = replace(
            state, world_size=layout.world_size, zero_stage=layout.zero_stage, precision=layout.precision
        )
        self.data.seek(state.position)
        self.early_stopping.state = state.early_stopping
        self.recovery.state = state.recovery
        self.metrics.restart(self.engine.skipped)
        self.evaluation, self.score = None, checkpoint.named_score

    def _advance(self, update: Update, result: Step, *, nonfinite: bool) -> None:
        """Count an update that was computed."""
        self.metrics.add(update, result, nonfinite=nonfinite)
        self.cost.add(update.sums)
        self.state = replace(self.state, step=self.state.step + 1, position=update.following)
        self.evaluation = self.score = None
        self.tracker.emit(UpdateDone(self.state.step, update.src_tokens + update.tgt_tokens))

    def _is_worth_keeping(self, *, due: bool) -> bool:
        """Whether the run needs a checkpoint of the current weights, which is ``due`` by the clock or not.

        Non-finite updates do not change the weights, so a checkpoint among them would only displace useful ones.
        """
        is_new_best = self.score is not None and self.early_stopping.is_new_best
        due = due or is_new_best or _is_due(self.state.step, self.config.checkpoint.every_updates)
        return self.is_finished or (due and not self.recovery.state.consecutive_nonfinite)

    def _log(self) -> None:
        step = self.state.step
        record = self.metrics.summarise(self.engine)
        self.tracker.emit(TrainingProgress(step, {**record, "epoch": float(self.state.position.epoch + 1)}))
        self.tracker.emit(CostTotal(step, self.cost.totals))

    def evaluate(self, model: str, split: str, sentences: int) -> Evaluation:
        """Evaluate what the validator has loaded, a ``model`` for the user. Collective.

        Raises:
            StopRequested: The run was stopped meanwhile.
        """
        name = f"{model} on {split}"

        def show(done: int, total: int) -> None:
            if self.is_finished and not done:
                self.tracker.emit(Message(f"evaluating {name}: {counted(total, 'sentence')}"))
            self.tracker.emit(EvaluationProgress(name, done, total))

        return self.validator.evaluate(self.experiment.corpus.split(split), sentences, show)

    def _validate(self) -> None:
        step = self.state.step
        self.evaluation = self._evaluate(f"update {step}")
        self.score = self.evaluation.main
        self.early_stopping.update(self.evaluation)
        if self.early_stopping.is_over:
            self.tracker.emit(Message(f"update {step}  stopping early: {self.early_stopping.describe()}"))
        self.tracker.emit(EvaluationDone("valid", step, self.evaluation))
        self.metrics.pause()

    def _score_start(self) -> None:
        """Score the bundle that training starts from. Early stopping counts only weights that the run can save."""
        name = "the bundle that training starts from"
        self.tracker.emit(Message(f"update 0  scoring {name}"))
        evaluation = start = self._evaluate(name)
        split, sentences = self.experiment.corpus.split("validation"), self.config.validation.final_sentences
        if self.validator.score_name(split, sentences) != evaluation.main.name:  # which the final evaluation compares
            start = self.evaluate(name, "validation", sentences)
        self.tracker.emit(EvaluationDone("valid", 0, evaluation))
        self.checkpoints.record_start(start.main)
        self.metrics.pause()

    def _evaluate(self, model: str) -> Evaluation:
        self.session.report(self.state.step, "validation")
        self.validator.load(self.engine.iter_weights())
        return self.evaluate(model, "validation", self.config.validation.bleu_sentences)

    def _validate_if_missed(self) -> None:
        """Do the validation that a stop request prevented, so that a resumed run equals an uninterrupted one."""
        is_due = self.state.step > 0 and _is_due(self.state.step, self.config.validation.every)
        if is_due and not self.is_finished and self.score is None:
            self._validate()
            self.checkpoints.add_score(self._current_state(), self.score, interim=not self._is_worth_keeping(due=False))

    def _save(self, *, interim: bool) -> None:
        self.session.report(self.state.step, "checkpoint")
        self.checkpoints.begin(self.engine.snapshot, self._current_state(), self.score, interim=interim)
        self.metrics.pause()

    def _save_last(self) -> None:
        """Make sure that the last checkpoint is complete and has a score, which it lacks if a stop prevented it."""
        self.session.report(self.state.step, "the last checkpoint")
        if self.score is None:
            self._validate()
        self.checkpoints.save_last(self.engine.snapshot, self._current_state(), self.score)

    def _current_state(self) -> TrainState:
        """What a checkpoint of the current weights holds beside them."""
        return replace(
            self.state,
            cost=self.cost.total,
            engine=self.engine.state,
            early_stopping=self.early_stopping.state,
            recovery=self.recovery.state,
        )


def _is_due(step: int, every: int) -> bool:
    """Whether something that is done every ``every`` updates is due after update ``step``; 0 turns it off."""
    return every > 0 and step % every == 0
