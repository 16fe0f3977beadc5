"""The DeepSpeed engine. The only caller of ``deepspeed.initialize``."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from dstransformer.batching import Update, deal
from dstransformer.checkpoints.format import Snapshot
from dstransformer.cluster.world import World, peer_errors
from dstransformer.config import Config, offloads_optimizer, precision_of, zero_stage
from dstransformer.errors import DIVERGED_ADVICE, ConfigError, DataError, DivergedError
from dstransformer.model import LossSums, Transformer
from dstransformer.training.ema import WeightAverage
from dstransformer.training.optimizer import build_optimizer, learning_rate
from dstransformer.training.runtime import import_deepspeed

logger = logging.getLogger(__name__)

#: DeepSpeed's checkpoint tag: the subfolder that holds its state.
_TAG = "state"

#: Where DeepSpeed's optimizers keep a rank's partition of the fp32 weights: ZeRO 3, ZeRO 1 and 2, and bf16 with
#: gradients accumulated in fp32.
_PARTITIONS = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")

#: Training has diverged after this many updates in a row were skipped because of NaN or infinite gradients. Not used in
#: fp16, which lowers its loss scale instead.
MAX_SKIPPED_UPDATES = 20

_FP16_DIVERGED = f"fp16 training diverged: gradients overflow at the smallest loss scale; use bf16, {DIVERGED_ADVICE}"


class _RejectedConfigError(ConfigError):
    """Raised on every rank, because all ranks have the same configuration."""

    shared = True


class Engine:
    """Wraps the DeepSpeed engine; computes one update at a time. All methods are collective.

    Args:
        config: The experiment.
        ds_config: The complete DeepSpeed configuration, from ``compose``.
        vocab_size: Number of pieces of the tokenizer.
        world: The process group.
    """

    def __init__(self, config: Config, ds_config: Mapping[str, Any], vocab_size: int, world: World) -> None:
        deepspeed = import_deepspeed(ds_config, world)
        from dstransformer.training.snapshots import StateCollector

        self._config = config
        self._world = world
        self._stage = zero_stage(ds_config)
        self._precision = precision_of(ds_config)
        torch.manual_seed(config.training.seed)
        model = Transformer(
            config.model,
            vocab_size,
            config.loss.label_smoothing,
            config.training.attention_backend,
            r_drop=config.loss.r_drop,
        )
        model.to(world.device)
        optimizer = build_optimizer(model.parameters(), config.optimizer, offloaded=offloads_optimizer(ds_config))
        try:
            self._engine, self._optimizer, _, _ = deepspeed.initialize(
                model=model,
                optimizer=optimizer,
                lr_scheduler=self._build_scheduler,
                config=dict(ds_config),
                dist_init_required=False,
            )
        except (ValidationError, deepspeed.DeepSpeedConfigError) as error:
            raise _RejectedConfigError(
                f"DeepSpeed rejects its configuration: {' '.join(str(error).split())[:300]}; "
                "fix the JSON given with --ds (`dst ds-config` prints the full configuration)"
            ) from None
        except ImportError as error:
            raise ConfigError(  # on this rank; another node may have it
                f"the DeepSpeed configuration needs a package that cannot be imported ({error}): install it, or remove "
                "the section from the JSON given with --ds"
            ) from None
        self._collector = StateCollector()
        self._engine.checkpoint_engine = self._collector
        self._engine._copy_recovery_script = _skip_recovery_script
        self._ema = self._build_ema()
        self._grad_norm: float | None = None
        self._skipped_in_a_row = 0
        self._marks_overflow = self._stage == 0 and self._precision == "fp32"
        # Without ZeRO, DeepSpeed unscales fp16 gradients but leaves scaling the loss to us, and during initialisation
        # it takes an Adam step on zero gradients.
        self._scales_loss = self._stage == 0 and self._precision == "fp16"
        self._step_scale = 1.0
        if self._marks_overflow:
            self._optimizer.register_step_pre_hook(_skip_overflow)
        if self._stage == 0 and hasattr(self._optimizer, "fp32_groups"):
            for state in self._optimizer.optimizer.state.values():
                state["step"].zero_()

    def _build_ema(self) -> WeightAverage | None:
        if not self._config.optimizer.ema_decay:
            return None
        return WeightAverage(self._fp32_masters(), self._config.optimizer.ema_decay)

    def _fp32_masters(self) -> list[Tensor]:
        """The weights that the optimizer updates in place on this rank, by DeepSpeed's class of optimizer.

        Raises:
            ConfigError: DeepSpeed keeps them in another place.
        """
        if not self._stage:
            masters = self._fp32_weights_without_zero()
            return [masters.get(parameter, parameter) for parameter in self._engine.module.parameters()]
        for name in _PARTITIONS:
            if hasattr(self._optimizer, name):
                return list(getattr(self._optimizer, name))
        raise _RejectedConfigError(
            f"optimizer.ema_decay cannot be used with DeepSpeed's {type(self._optimizer).__name__}: set "
            "optimizer.ema_decay=0, or use the fragments of ds_configs"
        )

    def _build_scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        # LambdaLR counts applied updates from 0; skipped updates do not count.
        return LambdaLR(
            optimizer, lambda applied: learning_rate(applied + 1, self._config.model.d_model, self._config.schedule)
        )

    def step(self, update: Update, number: int) -> LossSums:
        """Compute an update.

        DeepSpeed divides the gradient by accumulation steps x world size, which is the number of micro-batches. So the
        summed loss of a micro-batch is multiplied by that number and divided by the target tokens of the whole update:
        in any layout, the gradient is that of the mean loss per target token of the update.

        Args:
            update: This rank's share of the update.
            number: Number of the update, from 1. Dropout masks are a function of seed, update and micro-batch.

        Returns:
            This rank's share of the loss sums, on the device, without waiting for them.

        Raises:
            DivergedError: fp16 reached its minimum loss scale; in another precision, ``MAX_SKIPPED_UPDATES``
                updates in a row were skipped.
        """
        before = self.skipped
        with peer_errors():
            losses = self._compute(update, number)
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if self.skipped > before else 0
        if self._ema is not None and not self._skipped_in_a_row:
            self._ema.add(number - self.skipped)
        if self._skipped_in_a_row >= MAX_SKIPPED_UPDATES and self._precision != "fp16":
            raise DivergedError(
                f"training diverged: {MAX_SKIPPED_UPDATES} updates in a row, up to {number}, were skipped because "
                f"their gradients were NaN or infinite; {DIVERGED_ADVICE}"
            )
        return losses

    def _compute(self, update: Update, number: int) -> LossSums:
        micro_batches = self._config.batch.micro_batches
        loss = torch.zeros((), dtype=torch.float32, device=self._world.device)
        nll = torch.zeros_like(loss)
        numbers = deal(micro_batches, self._world.rank, self._world.world_size)
        for accumulation, (micro_batch, batch) in enumerate(zip(numbers, update.batches, strict=True)):
            torch.manual_seed(dropout_seed(self._config.training.seed, number, micro_batch))
            sums = self._engine(*batch.to(self._world.device))
            self._step_scale = self.loss_scale if self._scales_loss else 1.0
            self._engine.backward(sums.loss * (self._step_scale * micro_batches / update.tgt_tokens))
            if accumulation + 1 == len(update.batches):
                self._compute_grad_norm()
            self._step_engine()
            loss += sums.loss.detach()
            nll += sums.nll
        return LossSums(loss, nll)

    def _compute_grad_norm(self) -> None:
        """Compute the gradient norm after the reduction for fp32 without ZeRO, where DeepSpeed does not.

        Marks a gradient that is not finite as overflow: the update is then skipped and DeepSpeed counts it, as in all
        other modes.
        """
        if self._marks_overflow:
            gradients = [p.grad for p in self._engine.module.parameters() if p.grad is not None]
            self._grad_norm = float(torch.nn.utils.get_total_norm(gradients))
            self._optimizer.overflow = not math.isfinite(self._grad_norm)

    def _step_engine(self) -> None:
        try:
            self._engine.step()
        except Exception as error:
            if "loss scale" in str(error).lower():
                raise DivergedError(_FP16_DIVERGED) from error
            raise
        if self._scales_loss and self._optimizer.overflow:
            scaling = self._optimizer.loss_scale_config
            if self._step_scale <= scaling.min_loss_scale:
                raise DivergedError(_FP16_DIVERGED)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self._engine.get_lr()[0])

    @property
    def grad_norm(self) -> float:
        """The global gradient norm of the last update before clipping; infinite or NaN if the update was skipped."""
        norm = self._engine.get_global_grad_norm()
        if norm is None:
            norm = self._grad_norm
        return float("nan") if norm is None else float(norm) / self._step_scale

    @property
    def loss_scale(self) -> float:
        """The loss scale of fp16; 1 in other precisions."""
        for name in ("cur_scale", "loss_scale"):
            scale = getattr(self._optimizer, name, None)
            if scale is not None:
                return float(scale)
        return 1.0

    @property
    def applied_nonfinite_gradient(self) -> bool:
        """Whether the last update applied a NaN or infinite gradient, which a user's DeepSpeed JSON may allow."""
        known = self._engine.get_global_grad_norm() is not None or self._grad_norm is not None
        return known and self._skipped_in_a_row == 0 and not math.isfinite(self.grad_norm)

    @property
    def skipped(self) -> int:
        """Number of updates skipped since the start of the run because of NaN or infinite gradients.

        Normal in fp16, which finds its loss scale in this way; a sign of trouble in other precisions.
        """
        return int(self._engine.skipped_steps)

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over all weights by name: unpartitioned, in fp32, on the device, one at a time.

        With ``optimizer.ema_decay`` they are the moving average, until the iteration ends.
        """
        with nullcontext() if self._ema is None else self._ema.in_place_of_weights():
            yield from self._iter_current_weights()

    def _iter_current_weights(self) -> Iterator[tuple[str, Tensor]]:
        from deepspeed.utils import safe_get_full_fp32_param

        masters = self._fp32_weights_without_zero() if self._stage == 0 else {}
        for name, parameter in self._engine.module.named_parameters():
            if self._stage == 0:
                yield name, masters.get(parameter, parameter).detach()
            else:
                full = safe_get_full_fp32_param(parameter)
                yield name, full.detach().view(getattr(parameter, "ds_shape", parameter.shape))

    def _fp32_weights_without_zero(self) -> dict[Tensor, Tensor]:
        halves = getattr(self._optimizer, "fp16_groups", [])
        masters = getattr(self._optimizer, "fp32_groups", [])
        return {
            half: master
            for half_group, group in zip(halves, masters, strict=True)
            for half, master in zip(half_group, group, strict=True)
        }

    def snapshot(self) -> Snapshot:
        """Copy this rank's state and, on rank 0, all weights to CPU memory."""
        self._engine.save_checkpoint(".", tag=_TAG, save_latest=False)
        states = self._collector.take()
        if self._ema is not None and (self._stage or self._world.is_rank0):
            states[self._ema_file] = self._ema.state()
        weights = {}
        for name, weight in self.iter_weights():  # gathering is collective
            if self._world.is_rank0:
                weights[name] = weight.to("cpu", copy=True)
        return Snapshot(states, weights)

    def load(self, folder: Path) -> None:
        """Load DeepSpeed's state from a folder that the same number of processes wrote.

        Raises:
            DataError: The state cannot be read.
        """
        try:
            path, _ = self._engine.load_checkpoint(str(folder), tag=_TAG)
        except (OSError, EOFError, UnpicklingError) as error:
            raise DataError(f"cannot resume from {folder}: {' '.join(str(error).split())[:300]}") from error
        if path is None:
            raise DataError(f"cannot resume from {folder}: it has no DeepSpeed state")
        if self._ema is not None:
            file = folder / self._ema_file
            try:
                self._ema.load(torch.load(file, map_location="cpu", weights_only=True))
            except (OSError, EOFError, UnpicklingError, RuntimeError, ValueError) as error:
                raise DataError(f"cannot resume from {file}: {' '.join(str(error).split())[:300]}") from error

    @property
    def _ema_file(self) -> str:
        """Where a checkpoint keeps this rank's part of the moving average. Without ZeRO, all ranks have the same."""
        return f"{_TAG}/ema_rank_{self._world.rank if self._stage else 0:05}.pt"


def dropout_seed(seed: int, update: int, micro_batch: int) -> int:
    """A 63-bit seed that differs between all micro-batches of all updates and is the same on every machine."""
    return int(np.random.SeedSequence((seed, update, micro_batch)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _skip_overflow(optimizer: Any, *_: object) -> None:
    """On overflow, drop the gradients, so that Adam does nothing."""
    if optimizer.overflow:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _skip_recovery_script(save_path: str) -> None:
    """Replaces copying DeepSpeed's conversion script into checkpoints, which already contain a bundle."""
