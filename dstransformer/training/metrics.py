"""Training metrics between two log records."""

from __future__ import annotations

import math
import time

import torch

from dstransformer.batching import Update
from dstransformer.distributed.world import World
from dstransformer.model import LossSums
from dstransformer.training.engine import Engine


class TrainingMetrics:
    """Accumulates losses, token counts and time. Waits for the device only to make a record."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._skipped = 0
        self._began = self._last = time.monotonic()
        self._clear()

    def restart(self, skipped: int) -> None:
        """Reset after a resume. ``skipped`` is the engine's count of skipped updates."""
        self._skipped = skipped
        self._clear()

    def pause(self) -> None:
        """Exclude the time since the last update (validation, a checkpoint) from the speed."""
        now = time.monotonic()
        self._began += now - self._last
        self._last = now

    def add(self, update: Update, losses: LossSums, learning_rate: float) -> None:
        """Add an update: this rank's loss sums, and the learning rate."""
        self._losses.append(torch.stack((losses.loss, losses.nll)))
        self._loss_tokens += update.tgt_tokens
        self._updates += 1
        self._src_tokens += update.src_tokens
        self._tgt_tokens += update.tgt_tokens
        self._learning_rate = learning_rate
        self._last = time.monotonic()

    def leave_out_losses(self, update: Update) -> None:
        """Leave the losses of the last update out of the means: on some rank they are not finite."""
        self._losses.pop()
        self._loss_tokens -= update.tgt_tokens

    def summarise(self, engine: Engine) -> dict[str, float]:
        """Make a record of all updates since the last record. Collective.

        Loss and perplexity are NaN if the loss of no update was finite.
        """
        loss, nll = self._mean_losses()
        seconds = time.monotonic() - self._began
        skipped = engine.skipped
        record = {
            "loss": loss,
            "perplexity": math.exp(min(nll, 700.0)),
            "lr": self._learning_rate,
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

    def _mean_losses(self) -> tuple[float, float]:
        """Label-smoothed loss and negative log-likelihood per target token."""
        if not self._losses:
            return math.nan, math.nan
        loss, nll = self._world.all_reduce(torch.stack(self._losses).double().sum(dim=0).cpu()).tolist()
        return loss / self._loss_tokens, nll / self._loss_tokens

    def _clear(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._loss_tokens = 0
        self._updates = 0
        self._src_tokens = 0
        self._tgt_tokens = 0
        self._learning_rate = 0.0
        self._began = self._last = time.monotonic()
