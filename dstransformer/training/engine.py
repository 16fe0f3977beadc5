"""The model in DeepSpeed's hands. The only caller of ``deepspeed.initialize``."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.cpp_extension import get_default_build_root

from dstransformer.config import Config, offloads_optimizer, precision_of, zero_stage
from dstransformer.data import Update
from dstransformer.errors import ConfigError, DataError, DstError
from dstransformer.model import Transformer
from dstransformer.training.optimizer import build_optimizer
from dstransformer.training.schedule import learning_rate
from dstransformer.training.world import World, losing_a_peer

logger = logging.getLogger(__name__)

#: DeepSpeed's name for the state inside the folder that it is given.
_TAG = "state"

#: What to do when training has diverged.
ADVICE = (
    "lower schedule.scale or raise schedule.warmup_steps in a new run, or go on from an earlier checkpoint with "
    "--resume PATH"
)
#: Updates in a row that may be skipped, for a gradient that is not finite, before training has diverged; fp16 has its
#: loss scale to lower instead.
MOST_SKIPPED = 20

_FP16_DIVERGED = f"fp16 training diverged: gradients overflow at the smallest loss scale; use bf16, {ADVICE}"


@dataclass(frozen=True)
class StepLoss:
    """This rank's share of an update's sums over target tokens, in nats; on the device, not yet waited for."""

    loss: Tensor
    nll: Tensor


@dataclass(frozen=True)
class Snapshot:
    """The state of one moment, in CPU memory.

    Attributes:
        states: What this rank writes of DeepSpeed's state, by file name.
        weights: Every weight in fp32, by name; empty on ranks other than 0.
    """

    states: dict[str, Any]
    weights: dict[str, Tensor]


class _RefusedConfigError(ConfigError):
    """Every rank meets it, as all have the same configuration."""

    shared = True


class DivergedError(DstError):
    """The weights are lost. Every rank meets it at the same update."""

    shared = True


class Engine:
    """One optimizer step at a time. All methods are collective: every rank calls them together.

    Args:
        config: The experiment.
        ds_config: The complete DeepSpeed configuration, from ``compose``.
        vocab_size: Pieces of the tokenizer.
        world: The processes.
    """

    def __init__(self, config: Config, ds_config: Mapping[str, Any], vocab_size: int, world: World) -> None:
        deepspeed = _import_deepspeed(ds_config, world)
        self._config = config
        self._world = world
        self._stage = zero_stage(ds_config)
        self._precision = precision_of(ds_config)
        torch.manual_seed(config.training.seed)
        model = Transformer(config.model, vocab_size, config.loss.label_smoothing, config.training.attention_backend)
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
            raise _RefusedConfigError(
                f"DeepSpeed refuses its configuration: {' '.join(str(error).split())[:300]}; "
                "fix the JSON that --ds names (`dst ds-config` prints the whole)"
            ) from None
        # DeepSpeed would write amid collective operations, where one rank with a full disk leaves the others waiting:
        # it hands its state over instead (see `snapshot`).
        self._engine.checkpoint_engine.makedirs = self._engine._copy_recovery_script = _do_nothing
        self._grad_norm: float | None = None
        self._skipped_in_a_row = 0
        self._marks_overflow = self._stage == 0 and self._precision == "fp32"
        # Without ZeRO, DeepSpeed divides fp16 gradients by the loss scale but leaves multiplying the loss to us, and
        # takes one step of Adam on zero gradients when it begins.
        self._scales_loss = self._stage == 0 and self._precision == "fp16"
        self._step_scale = 1.0
        if self._marks_overflow:
            self._optimizer.register_step_pre_hook(_skip_overflow)
        if self._stage == 0 and hasattr(self._optimizer, "fp32_groups"):
            for state in self._optimizer.optimizer.state.values():
                state["step"].zero_()

    def _build_scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        # LambdaLR counts the updates that have been applied, from 0; fp16 does not count those it skips.
        return LambdaLR(
            optimizer, lambda applied: learning_rate(applied + 1, self._config.model.d_model, self._config.schedule)
        )

    def step(self, update: Update, number: int) -> StepLoss:
        """Compute an update.

        DeepSpeed divides by the accumulation steps and the world size, together the number of micro-batches. So the
        summed loss of a micro-batch is multiplied by that number and divided by the target tokens of the whole update:
        the gradient is that of the mean over the update's tokens, however they are dealt out.

        Args:
            update: This rank's share of it.
            number: Of the update, from 1; dropout masks are a function of seed, update and micro-batch.

        Raises:
            DivergedError: The loss scale of fp16 cannot be lowered any more, or ``MOST_SKIPPED`` updates in a row were
                skipped in another precision.
        """
        before = self.skipped
        with losing_a_peer():
            losses = self._step(update, number)
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if self.skipped > before else 0
        if self._skipped_in_a_row >= MOST_SKIPPED and self._precision != "fp16":
            raise DivergedError(
                f"training diverged: the gradients of {MOST_SKIPPED} updates in a row, up to {number}, were NaN or "
                f"infinite, and were skipped; {ADVICE}"
            )
        return losses

    def _step(self, update: Update, number: int) -> StepLoss:
        micro_batches = self._config.batch.micro_batches
        loss = torch.zeros((), dtype=torch.float32, device=self._world.device)
        nll = torch.zeros_like(loss)
        for accumulation, batch in enumerate(update.batches):
            micro_batch = accumulation * self._world.world_size + self._world.rank
            torch.manual_seed(dropout_seed(self._config.training.seed, number, micro_batch))
            sums = self._engine(*batch.to(self._world.device).arguments())
            self._step_scale = self.loss_scale if self._scales_loss else 1.0
            self._engine.backward(sums.loss * (self._step_scale * micro_batches / update.tgt_tokens))
            if accumulation + 1 == len(update.batches):
                self._note_norm()
            self._step_engine()
            loss += sums.loss.detach()
            nll += sums.nll
        return StepLoss(loss, nll)

    def _note_norm(self) -> None:
        """Without ZeRO and in fp32 DeepSpeed does not look at the norm; the gradients are whole and reduced by now.

        As elsewhere, a gradient that is not finite is skipped: DeepSpeed counts what the optimizer marks as overflow.
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
        """The rate of the next update."""
        return float(self._engine.get_lr()[0])

    @property
    def grad_norm(self) -> float:
        """The global norm of the last update's gradient, before clipping; infinite or NaN where it was skipped."""
        norm = self._engine.get_global_grad_norm()
        if norm is None:
            norm = self._grad_norm
        return float("nan") if norm is None else float(norm) / self._step_scale

    @property
    def loss_scale(self) -> float:
        """The factor that keeps fp16 gradients from vanishing; 1 in other precisions."""
        for name in ("cur_scale", "loss_scale"):
            scale = getattr(self._optimizer, name, None)
            if scale is not None:
                return float(scale)
        return 1.0

    @property
    def applied_infinity(self) -> bool:
        """Whether the last update took a gradient that was not finite into the weights, as a JSON may ask DeepSpeed."""
        known = self._engine.get_global_grad_norm() is not None or self._grad_norm is not None
        return known and self._skipped_in_a_row == 0 and not math.isfinite(self.grad_norm)

    @property
    def skipped(self) -> int:
        """Updates skipped since the run began, as their gradient was not finite.

        In fp16 that is how the loss scale is found; in other precisions something went wrong.
        """
        return int(self._engine.skipped_steps)

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name, whole and in fp32, on the device; one at a time, each on every rank."""
        from deepspeed.utils import safe_get_full_fp32_param

        masters = self._masters_without_zero() if self._stage == 0 else {}
        for name, parameter in self._engine.module.named_parameters():
            if self._stage == 0:
                yield name, masters.get(parameter, parameter).detach()
            else:
                full = safe_get_full_fp32_param(parameter)
                yield name, full.detach().view(getattr(parameter, "ds_shape", parameter.shape))

    def _masters_without_zero(self) -> dict[Tensor, Tensor]:
        halves = getattr(self._optimizer, "fp16_groups", [])
        masters = getattr(self._optimizer, "fp32_groups", [])
        return {
            half: master
            for half_group, group in zip(halves, masters, strict=True)
            for half, master in zip(half_group, group, strict=True)
        }

    def snapshot(self) -> Snapshot:
        """Copy what a checkpoint holds, every rank its part."""
        states: dict[str, Any] = {}
        self._engine.checkpoint_engine.save = lambda state_dict, path: states.update({path: _copy_to_cpu(state_dict)})
        self._engine.save_checkpoint(".", tag=_TAG, save_latest=False)
        weights = {}
        for name, weight in self.iter_weights():  # every rank takes part in gathering them
            if self._world.is_first:
                weights[name] = weight.to("cpu", copy=True)
        return Snapshot(states, weights)

    def load(self, folder: Path) -> None:
        """Read the states of a snapshot, from the files in a folder, on the same number of processes.

        Raises:
            DataError: The state cannot be read.
        """
        try:
            path, _ = self._engine.load_checkpoint(str(folder), tag=_TAG)
        except (OSError, EOFError, UnpicklingError) as error:
            raise DataError(f"cannot resume from {folder}: {' '.join(str(error).split())[:300]}") from error
        if path is None:
            raise DataError(f"cannot resume from {folder}: it holds no DeepSpeed state")


def dropout_seed(seed: int, update: int, micro_batch: int) -> int:
    """A seed of its own for every micro-batch of every update, the same on every machine; 63 bits."""
    return int(np.random.SeedSequence((seed, update, micro_batch)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _skip_overflow(optimizer: Any, *_: object) -> None:
    """Leave Adam nothing to do where the gradient was not finite."""
    if optimizer.overflow:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _do_nothing(*_: object, **__: object) -> None:
    pass


def _copy_to_cpu(state: Any) -> Any:
    """A copy of nested containers whose tensors are in CPU memory and share nothing with the running model."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _copy_to_cpu(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_copy_to_cpu, state))
    return copy.deepcopy(state)


def _operator_folder() -> str:
    """Where DeepSpeed's C++ operators are built when they are first used.

    A folder for each installation: they are built from its headers, and two that share one build them over and over.
    """
    return str(Path(get_default_build_root(), hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]))


def await_operator_builds(folder: Path, patience: float = 600.0) -> None:
    """Wait for whoever builds an operator, but not for one that was killed: PyTorch would, for ever and silently.

    Args:
        folder: Where the operators are built.
        patience: A lock beside which nothing has been written for so many seconds was left behind, and is removed.
    """
    for lock in folder.glob("**/deepspeed_*/lock"):
        logger.warning(
            "another process builds or loads the DeepSpeed operator in %s, and this one waits for it; if that process "
            "was killed, this one goes on in %.0f s",
            lock.parent,
            patience,
        )
        with contextlib.suppress(FileNotFoundError):
            while lock.exists() and time.time() - max(p.stat().st_mtime for p in lock.parent.iterdir()) < patience:
                time.sleep(0.2)
            lock.unlink()


def _expect_operator_builds(world: World, operators: Path) -> None:
    """The Adam for offloaded states is a C++ operator that DeepSpeed compiles at its first use."""
    await_operator_builds(operators)
    if world.is_first and not any(operators.glob("**/*.so")):
        logger.warning("DeepSpeed compiles its Adam for the CPU, once per installation: this may take a minute")


def _import_deepspeed(ds_config: Mapping[str, Any], world: World) -> Any:
    # DeepSpeed still calls collectives under names that PyTorch has replaced; nothing a user could do about it.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # Its operators are built by the ninja beside this Python: ssh and a path to the program bring no other.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", _operator_folder())
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import logger as deepspeed_logger

    deepspeed_logger.setLevel(logging.WARNING)
    # On a CPU DeepSpeed would compile an all-reduce through shared memory, which only its inference engine calls.
    torch_backend: Any = import_module("deepspeed.comm.torch")
    torch_backend.build_shm_op = _do_nothing
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    if offloads_optimizer(ds_config):
        _expect_operator_builds(world, Path(os.environ["TORCH_EXTENSIONS_DIR"]))
    accelerator = get_accelerator()
    if world.device.type == "cpu" and precision_of(ds_config) == "fp16" and not accelerator.is_fp16_supported():
        logger.warning("this CPU has no fp16 instructions: PyTorch computes fp16 in software, slowly; bf16 is faster")
        accelerator.is_fp16_supported = lambda: True
    return deepspeed
