"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dstransformer.config import Config, precision_of
from dstransformer.corpus import Corpus
from dstransformer.data import Position, Update, UpdateLoader, build_budget
from dstransformer.tracking import Evaluation, Tracker
from dstransformer.training.checkpoint import Checkpoint, CheckpointFolder, Score, TrainState
from dstransformer.training.closing import Choice, Closing
from dstransformer.training.engine import ADVICE, DivergedError, Engine, StepLoss
from dstransformer.training.saver import Saver
from dstransformer.training.signals import StopRequest
from dstransformer.training.validation import Validator
from dstransformer.training.world import World


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        step: Updates computed.
        stopped_by: What stopped it, None where it reached its last update and made its bundle.
        evaluations: Of the bundle, by split.
        averaged_steps: The checkpoints that the bundle is the mean of; a single one where it is that.
        final: How the bundle was chosen.
    """

    step: int
    stopped_by: str | None
    evaluations: dict[str, Evaluation]
    averaged_steps: list[int]
    final: Choice | None


class Trainer:
    """Trains one model. Every rank holds one, and they do the same things in the same order.

    Args:
        config: The experiment.
        ds_config: The complete DeepSpeed configuration.
        corpus: With the splits ``train``, ``validation`` and perhaps ``test``.
        run: The run's folder.
        world: The processes.
        tracker: Who listens.
        provenance: What the bundles say of their origin.
    """

    def __init__(
        self,
        config: Config,
        ds_config: Mapping[str, Any],
        corpus: Corpus,
        run: Path,
        world: World,
        tracker: Tracker,
        provenance: Mapping[str, Any],
    ) -> None:
        self._precision = precision_of(ds_config)
        self._config = config
        self._corpus = corpus
        self._run = run
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
        )
        self.engine = Engine(config, ds_config, corpus.tokenizer.vocab_size, world)
        self._validator = Validator(config, corpus.tokenizer, world, self._precision)
        self._folder = CheckpointFolder(run / "checkpoints", config.checkpoint.keep_last, config.checkpoint.keep_best)
        self._saver = Saver(self._folder, world, config, corpus.tokenizer, provenance, self._announce)
        self._state = TrainState.fresh(ds_config, world.world_size, corpus.manifest)
        self._figures = Figures(world)
        self._evaluation: Evaluation | None = None
        self._scored: tuple[int, Score] | None = None
        self._saved: tuple[int, bool] | None = None  # the newest checkpoint, and whether it has a score
        self._last_save = (0, time.monotonic())

    def run(self, stop: StopRequest) -> Outcome:
        """Train to the last update, or until asked to stop; a request that came before is heeded after one update.

        Raises:
            DivergedError: The weights are lost; the checkpoints from before are not.
            StorageError: A checkpoint could not be written.
        """
        try:
            return self._train(stop)
        except DivergedError:
            self._saver.finish()
            raise

    def _train(self, stop: StopRequest) -> Outcome:
        state = self._state
        for update in self._loader.iter_updates(Position(state.epoch, state.update)):
            if self._state.step >= self._config.training.max_updates:
                break
            self._step(update)
            stopping, saving, writing = self._world.any(
                stop.received is not None, self._time_to_save(), self._saver.is_writing
            )
            if not writing:
                self._saver.finish()
            if self._is_due(self._config.training.log_every):
                self._log()
            if (self._is_due(self._config.validation.every) or self._is_last) and not stopping:
                self._validate()
            if stopping or saving or self._is_last or self._is_due(self._config.checkpoint.every_updates):
                self._save()
            if stopping:
                self._saver.finish()
                return self._stopped(stop)
        return self._finish(stop)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, as if the run had never stopped.

        Args:
            checkpoint: Written by as many processes, under the same ZeRO stage and in the same precision.
        """
        self.engine.load(checkpoint.engine)
        own = checkpoint.path.resolve().parent == self._folder.path.resolve()
        with self._world.together():
            if self._world.is_first and own:
                self._folder.drop_after(checkpoint.state.step)
        self._state = checkpoint.state
        if checkpoint.score is not None and checkpoint.metric is not None:
            self._scored = (checkpoint.state.step, (checkpoint.metric, checkpoint.score))
        self._saved = (checkpoint.state.step, self._is_scored) if own else None
        self._last_save = (checkpoint.state.step, time.monotonic())
        self._figures.restart(self.engine.skipped)

    def _step(self, update: Update) -> None:
        number = self._state.step + 1
        rate = self.engine.learning_rate
        losses = self.engine.step(update, number)
        self._figures.add(update, losses, rate)
        self._state = replace(self._state, step=number, epoch=update.following.epoch, update=update.following.update)

    def _is_due(self, every: int) -> bool:
        return every > 0 and self._state.step % every == 0

    @property
    def _is_last(self) -> bool:
        return self._state.step == self._config.training.max_updates

    @property
    def _is_scored(self) -> bool:
        return self._scored is not None and self._scored[0] == self._state.step

    def _time_to_save(self) -> bool:
        minutes = self._config.checkpoint.every_minutes
        return minutes > 0 and time.monotonic() - self._last_save[1] >= 60.0 * minutes

    def _log(self) -> None:
        record = self._figures.summarise(self.engine)
        self._tracker.log_train(self._state.step, {**record, "epoch": float(self._state.epoch)})
        self._refuse_divergence(math.isfinite(record["loss"]))

    def _validate(self) -> None:
        self._validator.load(self.engine.iter_weights())
        evaluation = self._validator.evaluate(self._corpus.split("validation"), self._config.validation.bleu_sentences)
        self._evaluation = evaluation
        self._scored = (self._state.step, evaluation.bleu)
        self._tracker.log_eval(
            "valid",
            self._state.step,
            evaluation.metrics,
            signatures=evaluation.signatures,
            samples=evaluation.samples,
        )
        self._figures.pause()

    def _save(self) -> None:
        step = self._state.step
        # The last gradient is in the weights and in no loss yet.
        self._refuse_divergence(self._figures.are_finite() and not self.engine.applied_infinity)
        score = self._scored[1] if self._scored is not None and self._is_scored else None
        self._saver.begin(self.engine, self._state, score)
        self._saved = (step, score is not None)
        self._last_save = (step, time.monotonic())
        self._figures.pause()

    def _announce(self, checkpoint: Checkpoint) -> None:
        self._tracker.log_checkpoint(checkpoint.path, checkpoint.sha256, checkpoint.state.step, checkpoint.score)

    def _refuse_divergence(self, finite: bool) -> None:
        """Stop before lost weights take the place of good ones; fp16 skips such updates and lowers its scale."""
        if not finite and self._precision != "fp16":
            raise DivergedError(
                f"training diverged: the loss became NaN or infinite by update {self._state.step}; {ADVICE}"
            )

    def _finish(self, stop: StopRequest) -> Outcome:
        """Make the run's bundle of the checkpoints, the last of which has a score."""
        if self._saved != (self._state.step, True):  # it was stopped before, or goes on from another run's last
            if not self._is_scored:
                self._validate()
            self._save()
        self._saver.finish()
        closing = Closing(
            self._config, self._corpus, self._run, self._folder, self._world, self._validator, self._tracker
        )
        closed = closing.close(
            self._state.step, self._evaluation, lambda: self._world.any(stop.received is not None)[0]
        )
        if closed is None:
            return self._stopped(stop)
        choice, evaluations = closed
        return Outcome(self._state.step, None, evaluations, choice.steps[choice.chosen], choice)

    def _stopped(self, stop: StopRequest) -> Outcome:
        return Outcome(self._state.step, stop.received or "a signal to another process", {}, [], None)


class Figures:
    """Gathers what a record of the training holds, without waiting for the device between two records."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._skipped = 0
        self._began = self._last = time.monotonic()
        self._clear()

    def restart(self, skipped: int) -> None:
        """Count from here, after a resume."""
        self._skipped = skipped
        self._clear()

    def pause(self) -> None:
        """Leave the time since the last update out of the speed: it went into a validation or a checkpoint."""
        now = time.monotonic()
        self._began += now - self._last
        self._last = now

    def add(self, update: Update, losses: StepLoss, rate: float) -> None:
        """Take an update in."""
        self._losses.append(torch.stack((losses.loss, losses.nll)))
        self._updates += 1
        self._src_tokens += update.src_tokens
        self._tgt_tokens += update.tgt_tokens
        self._rate = rate
        self._last = time.monotonic()

    def summarise(self, engine: Engine) -> dict[str, float]:
        """The record of the updates since the last one. Collective."""
        loss, nll = self._sums().tolist()
        seconds = time.monotonic() - self._began
        skipped = engine.skipped
        record = {
            "loss": loss / self._tgt_tokens,
            "perplexity": math.exp(min(nll / self._tgt_tokens, 700.0)),
            "lr": self._rate,
            "grad_norm": engine.grad_norm,
            "loss_scale": engine.loss_scale,
            "skipped_share": (skipped - self._skipped) / self._updates,
            "src_tokens": self._src_tokens,
            "tgt_tokens": self._tgt_tokens,
            "src_tokens_per_second": self._src_tokens / seconds,
            "tgt_tokens_per_second": self._tgt_tokens / seconds,
            "tokens_per_second": (self._src_tokens + self._tgt_tokens) / seconds,
        }
        self._skipped = skipped
        self._clear()
        return record

    def are_finite(self) -> bool:
        """Whether the losses since the last record are numbers. Collective."""
        return not self._losses or bool(self._sums().isfinite().all())

    def _sums(self) -> torch.Tensor:
        return self._world.sum(torch.stack(self._losses).double().sum(dim=0).cpu())

    def _clear(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._updates = 0
        self._src_tokens = 0
        self._tgt_tokens = 0
        self._rate = 0.0
        self._began = self._last = time.monotonic()


def describe(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain data, for ``--json``."""
    plain = asdict(outcome)
    for evaluation in plain["evaluations"].values():
        del evaluation["samples"]
    return plain
