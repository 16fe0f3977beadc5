"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

import torch

from dstransformer.batching import (
    Augmentation,
    BpeDropout,
    SubwordSampling,
    UnigramSampling,
    Update,
    UpdateLoader,
    build_budget,
)
from dstransformer.checkpoints.format import Checkpoint, Cost, Setbacks, TrainState
from dstransformer.checkpoints.retention import CheckpointFolder
from dstransformer.checkpoints.saver import Saver
from dstransformer.distributed.supervision.failure_detection import UPDATE
from dstransformer.distributed.supervision.stop_signals import StopRequest
from dstransformer.distributed.world import World
from dstransformer.errors import DivergedError, StorageError
from dstransformer.evaluation import Evaluation, Score
from dstransformer.evaluation.task import Task
from dstransformer.evaluation.validation import Validator
from dstransformer.model import LengthSums
from dstransformer.tracking import CheckpointSaved, CostTotal, EvaluationDone, Message, Tracker, TrainingProgress
from dstransformer.training.cost import CostMeter
from dstransformer.training.divergence import BadUpdates, describe_rollback
from dstransformer.training.engine import Engine, Step
from dstransformer.training.metrics import TrainingMetrics
from dstransformer.training.saving import Insistence, Saves
from dstransformer.training.setup import Setup


class Trainer:
    """Trains one model. Every rank has a trainer, and all ranks perform the same steps in the same order.

    Args:
        setup: The experiment.
        world: The process group.
        tracker: Receives metrics, evaluations and checkpoints.
        provenance: The provenance stored in the bundles.
        resumes: Whether :meth:`resume` follows, so that the initial weights do not matter.
        report: Called with the number of an update and what is done in it, before it is done.
    """

    def __init__(
        self,
        setup: Setup,
        world: World,
        tracker: Tracker,
        provenance: Mapping[str, Any],
        *,
        resumes: bool = False,
        report: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        config, corpus = setup.config, setup.corpus
        self._setup = setup
        self._config = config
        self._world = world
        self._tracker = tracker
        self._loader = UpdateLoader(
            corpus.split("train"),
            build_budget(config.batch),
            seed=config.training.seed,
            rank=world.rank,
            world_size=world.world_size,
            prefetch=config.training.prefetch,
            pin_memory=world.device.type == "cuda",
            subwords=_build_subword_sampling(setup),
            mixture=setup.mixture,
            window_pairs=config.training.window_pairs,
            augmentation=_build_augmentation(setup),
        )
        self._report = report
        initial = setup.parent.fill if setup.parent is not None and not resumes else None
        self.engine = Engine(
            config,
            setup.ds_config,
            corpus.tokenizer.vocab_size,
            world,
            initial,
            self._report_update,
            corpus.tokenizer.src.vocab_size,
        )
        task = Task(corpus.manifest.trees)
        self.validator = Validator(config, corpus.tokenizer, world, setup.precision, task)
        self._folder = CheckpointFolder(
            setup.run / "checkpoints", config.checkpoint.keep_last, config.checkpoint.keep_best
        )
        saver = Saver(self._folder, world, config, corpus.tokenizer, provenance, self._announce)
        self._saves = Saves(saver, config.checkpoint, world, tracker)
        self._state = setup.initial_state
        self._metrics = TrainingMetrics(world)
        self._bad = BadUpdates(config.training, setup.precision, world)
        self._meter = CostMeter(config, corpus.tokenizer.vocab_size, world.world_size)
        self._evaluated: tuple[int, Evaluation] | None = None  # step and result of the last evaluation
        self._scored: tuple[int, Score] | None = None  # step and score of the last evaluation, possibly before a resume

    @property
    def step(self) -> int:
        """Number of updates computed so far."""
        return self._state.step

    @property
    def evaluation(self) -> Evaluation | None:
        """The validation of the current weights; None if they have not been evaluated."""
        return self._evaluated[1] if self._evaluated is not None and self._evaluated[0] == self.step else None

    def run(self, stop: StopRequest) -> bool:
        """Train to the last update. On a stop request, finish the current update and save a checkpoint.

        A checkpoint that the disk refuses costs a warning, except for the last one.

        Returns:
            Whether the last update was computed. Its checkpoint then is complete and has a score.

        Raises:
            DivergedError: Training diverged, and may not go back to a checkpoint. Earlier checkpoints are intact.
            StorageError: The last checkpoint could not be saved, or at a stop none at all.
        """
        self._meter.start_clock()
        self._report_update(self.step + 1)
        self._catch_up_on_validation()
        while True:
            try:
                return self._train(stop)
            except DivergedError as error:
                self._go_back(error)

    def _train(self, stop: StopRequest) -> bool:
        for update in self._loader.iter_updates(self._state.position):
            if self._is_last:
                break
            done = self._train_update(update)
            stopping, saving, writing, infinite = self._world.any(
                stop.received is not None,
                self._saves.is_due,
                self._saves.is_writing,
                not bool(done.losses.loss.isfinite()),
            )
            if stopping:
                stop.agree(self._world)
            if not writing:
                self._saves.finish()
            self._account(update, done, infinite)
            if self._is_due(self._config.training.log_every):
                self._log()
            if (self._is_due(self._config.validation.every) or self._is_last) and not stopping:
                self._validate()
            due = saving or self._is_due(self._config.checkpoint.every_updates) or self._is_new_best
            # Among bad updates the weights stay those of the last good one; older checkpoints are worth more.
            kept = self._is_last or (due and not self._state.setbacks.in_a_row)
            if stopping or kept:
                self._save(interim=not kept)
            if stopping:
                self._saves.finish()
                self._saves.check_not_in_vain()
                return False
            self._report_update(self.step + 1)
        self._report(self.step, "the last checkpoint")
        return self._save_scored(stop)

    def _account(self, update: Update, done: Step, infinite: bool) -> None:
        """Take note of an update whose loss (``infinite``) or gradient is not finite.

        Raises:
            DivergedError: There were too many of them in a row.
        """
        if infinite:
            self._metrics.leave_out_losses(update)
        is_bad = not done.lowers_scale if done.skipped else infinite
        in_a_row = self._state.setbacks.in_a_row + 1 if is_bad else 0
        self._state = replace(self._state, setbacks=replace(self._state.setbacks, in_a_row=in_a_row))
        if is_bad:
            self._tracker.emit(self._bad.add(update, self.step, done, in_a_row))
            self._bad.check(self.step, in_a_row)

    def _go_back(self, error: DivergedError) -> None:
        """Go back to the last good checkpoint, and on with the data after the update that diverged.

        The updates between them are passed over: done again they would lead to the same end.

        Raises:
            DivergedError: ``training.max_rollbacks`` is reached, or there is no checkpoint to go back to.
        """
        self._report(self.step, "going back to a checkpoint")
        with suppress(DivergedError):
            self._saves.finish()
        before = self._state.setbacks
        found: Checkpoint | None = None
        with self._world.collective_errors():
            if self._world.is_rank0 and before.rollbacks < self._config.training.max_rollbacks:
                found = self._folder.newest_sound(before.went_back_to)
        found = self._world.broadcast(found)
        if found is None:
            raise error
        diverged, setbacks = self._state, Setbacks(0, before.rollbacks + 1, found.state.step)
        amended = replace(found.state, position=diverged.position, cost=self._meter.total, setbacks=setbacks)
        self._take_up(replace(found, state=amended))
        self._tracker.emit(describe_rollback(error, found.state, diverged, amended, self._bad.recorded))
        try:
            with self._world.collective_errors():
                if self._world.is_rank0:
                    self._announce(self._folder.amend(found, amended))
        except StorageError as refusal:  # the next checkpoint has what this one should
            self._saves.note_refusal(found.state.step, refusal)
        self._bad.recorded.clear()

    def log_cost(self) -> Cost:
        """Log what the updates so far have cost, and return it."""
        cost = self._meter.total
        self._tracker.emit(CostTotal(self.step, cost.metrics()))
        return cost

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint, as if the run had never stopped.

        Args:
            checkpoint: A checkpoint of the same corpus and model, from any number of processes.
        """
        self._take_up(checkpoint)
        self._meter.resume(checkpoint.state.cost)
        with self._world.collective_errors():
            if self._world.is_rank0 and self._is_own(checkpoint):
                self._folder.delete_after(checkpoint.state.step)

    def _is_own(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.path.resolve().parent == self._folder.path.resolve()

    def _take_up(self, checkpoint: Checkpoint) -> None:
        """Load weights, moments and state of a checkpoint."""
        self.engine.load(checkpoint.pieces, checkpoint.state.step, checkpoint.state.engine)
        layout = self._setup.initial_state
        self._state = replace(
            checkpoint.state, world_size=layout.world_size, zero_stage=layout.zero_stage, precision=layout.precision
        )
        self._evaluated = self._scored = None
        if checkpoint.score is not None and checkpoint.metric is not None:
            self._scored = (self.step, Score(checkpoint.metric, checkpoint.score))
        self._saves.restart((self.step, self._score is not None) if self._is_own(checkpoint) else None)
        self._metrics.restart(self.engine.skipped)

    def _train_update(self, update: Update) -> Step:
        if self._loader.samples:
            update = replace(update, sums=self._sum_lengths(update.sums))
        number = self.step + 1
        learning_rate = self.engine.learning_rate
        done = self.engine.step(update, number)
        self._metrics.add(update, done.losses, learning_rate)
        self._meter.add(update.sums)
        self._state = replace(self._state, step=number, position=update.following)
        return done

    def _report_update(self, number: int) -> None:
        self._report(number, UPDATE)

    def _sum_lengths(self, sums: LengthSums) -> LengthSums:
        """Sum over all ranks."""
        return LengthSums(*self._world.all_reduce(torch.tensor(astuple(sums))).tolist())

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    @property
    def _is_last(self) -> bool:
        return self.step >= self._config.training.max_updates or self._is_out_of_patience

    @property
    def _is_new_best(self) -> bool:
        """Whether stopping early may come to need the current weights."""
        patient = self._config.validation.patience > 0 and self._score is not None
        return patient and self._state.patience.validations == 0

    @property
    def _is_out_of_patience(self) -> bool:
        return 0 < self._config.validation.patience <= self._state.patience.validations

    @property
    def _score(self) -> Score | None:
        """The validation score of the current weights; None if they have not been evaluated."""
        return self._scored[1] if self._scored is not None and self._scored[0] == self.step else None

    def _log(self) -> None:
        record = self._metrics.summarise(self.engine)
        self._tracker.emit(TrainingProgress(self.step, {**record, "epoch": float(self._state.position.epoch)}))
        self.log_cost()

    def _validate(self) -> None:
        self._report(self.step, "validation")
        self.validator.load(self.engine.iter_weights())
        split = self._setup.corpus.split("validation")
        evaluation = self.validator.evaluate(split, self._config.validation.bleu_sentences)
        self._evaluated = (self.step, evaluation)
        self._scored = (self.step, evaluation.main)
        self._lose_or_gain_patience(evaluation)
        self._tracker.emit(EvaluationDone("valid", self.step, evaluation))
        self._metrics.pause()

    def _lose_or_gain_patience(self, evaluation: Evaluation) -> None:
        config, main = self._config.validation, evaluation.main
        name, score = (
            (main.name, main.value) if config.patience_metric == "bleu" else ("loss", -evaluation.metrics["loss"])
        )
        self._state = replace(self._state, patience=self._state.patience.after(name, score))
        if self._is_out_of_patience:
            validations = f"{self._state.patience.validations} validations"
            line = f"update {self.step}  stopping early: no better {name} on validation in the last {validations}"
            self._tracker.emit(Message(line))

    def _catch_up_on_validation(self) -> None:
        """Do the validation that a stop signal prevented: curves are whole, and early stopping comes where it would."""
        due = self.step > 0 and self._is_due(self._config.validation.every)
        if due and not self._is_last and self._score is None:
            self._validate()

    def _save(self, *, interim: bool = False) -> None:
        self._report(self.step, "checkpoint")
        self._saves.begin(self.engine.snapshot, self._current_state, self._score, interim=interim)
        self._metrics.pause()

    @property
    def _current_state(self) -> TrainState:
        """What a checkpoint of the current weights holds beside them."""
        return replace(self._state, cost=self._meter.total, engine=self.engine.state)

    def _save_scored(self, stop: StopRequest) -> bool:
        """Make sure that the last checkpoint is complete and has a score, which it lacks if the run was stopped there.

        Returns:
            False if the run was stopped while it waited for the disk.
        """
        if self._score is None:
            self._validate()
        seconds, world = self._config.checkpoint.retry_seconds, self._world
        insistence = Insistence(
            seconds, self.step, lambda: world.any(stop.received is not None)[0], world, self._tracker
        )
        if self._saves.save_last(self.engine.snapshot, self._current_state, self._score, insistence):
            return True
        self._saves.check_not_in_vain()
        return False

    def _announce(self, checkpoint: Checkpoint) -> None:
        self._tracker.emit(CheckpointSaved(checkpoint.path, checkpoint.sha256, checkpoint.state.step, checkpoint.score))


def _build_subword_sampling(setup: Setup) -> SubwordSampling | None:
    training, model, tokenizer = setup.config.training, setup.config.model, setup.corpus.tokenizer
    longest = model.max_positions - 1 if model.positions == "learned" else None
    if training.bpe_dropout:
        return BpeDropout(tokenizer, training.bpe_dropout, training.seed, longest)
    if training.unigram_alpha:
        return UnigramSampling(tokenizer, training.unigram_alpha, training.seed, longest)
    return None


def _build_augmentation(setup: Setup) -> Augmentation | None:
    config, manifest = setup.config, setup.corpus.manifest
    training, split = config.training, manifest.splits["train"]
    if not training.augment:
        return None
    longest = max(split.src_lengths.max, split.tgt_lengths.max, int(manifest.options.get("max_tokens") or 0))
    if config.model.positions == "learned":
        longest = min(longest, config.model.max_positions - 1)
    languages = (manifest.src_lang, manifest.tgt_lang)
    return Augmentation(setup.corpus.tokenizer, training.augment, training.seed, languages, longest)
