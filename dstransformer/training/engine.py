"""The DeepSpeed engine. The only caller of ``deepspeed.initialize``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from dstransformer.config import Config, offloads_optimizer, precision_of, zero_stage
from dstransformer.data.loader import Update
from dstransformer.data.packing import PackedBatch
from dstransformer.data.plan import deal
from dstransformer.distributed.world import World, peer_errors
from dstransformer.model import DTYPES, Transformer
from dstransformer.model.loss import LossSums, Objective, recompute, zero_residual_branches
from dstransformer.training.checkpoints.format import EngineState, Snapshot
from dstransformer.training.checkpoints.shards import ShardReader
from dstransformer.training.optim import build_optimizer, freeze, moments_of
from dstransformer.training.partition import Partition
from dstransformer.training.precision import MixedPrecision
from dstransformer.training.runtime import import_deepspeed, rejections
from dstransformer.training.schedule import learning_rate

#: What DeepSpeed gets in place of the configuration: :class:`MixedPrecision` computes in half precision, and
#: :func:`compose` has refused optimizers that ZeRO cannot take.
_OVERRIDES = {"bf16": {"enabled": False}, "fp16": {"enabled": False}, "zero_allow_untested_optimizer": True}


class Step(NamedTuple):
    """A computed update.

    Attributes:
        losses: This rank's share of the loss sums, on the device.
        parts: The loss of each of this rank's micro-batches, ``(accumulation steps,)``, on the device.
        learning_rate: The learning rate it was computed with.
        finite: Whether this rank's share of the loss is neither NaN nor infinite.
        skipped: Whether the gradient was not finite on some rank, so that nothing changed.
        lowers_scale: Whether the overflow only lowered the loss scale of fp16.
    """

    losses: LossSums
    parts: Tensor
    learning_rate: float
    finite: bool
    skipped: bool = False
    lowers_scale: bool = False


class _HostFlag:
    """A flag on its way from the device to the host. Reading it waits for what was queued before it, and no more."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._value = torch.zeros((), dtype=torch.bool, pin_memory=self._event is not None)

    def send(self, flag: Tensor) -> None:
        """Queue the copy of a boolean scalar on the device."""
        self._value.copy_(flag, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def read(self) -> bool:
        """The flag sent last."""
        if self._event is not None and not self._event.query():  # type: ignore[no-untyped-call]
            self._event.synchronize()
        return bool(self._value)


class Engine:
    """Wraps the DeepSpeed engine; computes one update at a time. All methods are collective.

    Its parts are built in this order, as each needs the ones before:

    1. DeepSpeed itself, which may compile operators for the optimizer.
    2. The objective: a model with the random weights of the seed, which ``initial`` changes while they are whole.
    3. The optimizer of the model's parameters, some of them frozen.
    4. DeepSpeed's engine, which divides the parameters over the ranks.
    5. The :class:`Partition`, which finds this rank's part, creates its moments and copies it for the moving average.
    6. The :class:`MixedPrecision`, which rounds the weights that DeepSpeed's engine has, and checks its gradients.

    Args:
        config: The configuration.
        ds_config: The complete DeepSpeed configuration, from ``compose``.
        vocab_size: Number of pieces of the target side.
        world: The process group.
        initial: Changes the random initial weights of the model, in place.
        src_vocab_size: Number of pieces of the source side; None if the vocabulary is joint.
    """

    def __init__(
        self,
        config: Config,
        ds_config: Mapping[str, Any],
        vocab_size: int,
        world: World,
        initial: Callable[[nn.Module], None] | None = None,
        src_vocab_size: int | None = None,
    ) -> None:
        deepspeed = import_deepspeed(ds_config, world)
        self._config, self._world = config, world
        self._vocab_sizes = vocab_size, src_vocab_size
        self._stage = zero_stage(ds_config)
        dtype = DTYPES[precision_of(ds_config)]
        if world.device.type == "cuda":
            torch.set_float32_matmul_precision("high" if config.training.tf32 else "highest")
        torch.manual_seed(config.training.seed)
        self._objective = self._build_objective(dtype)
        model = self._objective.model
        if initial is not None:
            with world.collective_errors():
                initial(model)
        self._objective.to(world.device)
        freeze(model, config.training.freeze)
        optimizer = build_optimizer(
            model,
            config.optimizer,
            dtype,
            world,
            lambda: dict(self._partition.places()),  # called at the first step: the partition is built below
            offloaded=offloads_optimizer(ds_config),
        )
        with rejections():
            self._engine, _, _, _ = deepspeed.initialize(
                model=self._objective,
                optimizer=optimizer,
                lr_scheduler=self._build_scheduler,
                config={**ds_config, **_OVERRIDES},
                dist_init_required=False,
            )
        moments = moments_of(model, config.optimizer)
        self._partition = Partition(self._engine, model, world, moments, config.optimizer.ema_decay)
        self._precision = MixedPrecision(
            self._engine, ds_config, world.device, int8_weights=config.training.int8_weights
        )
        self._finite = _HostFlag(world.device)

    def _build_objective(self, dtype: torch.dtype) -> Objective:
        """The loss of a model with random initial weights, in fp32, which computes in ``dtype``."""
        config, (vocab_size, src_vocab_size) = self._config, self._vocab_sizes
        model = Transformer(
            config.model,
            vocab_size,
            config.training.attention_backend,
            src_vocab_size=src_vocab_size,
            dtype=None if dtype == torch.float32 else dtype,
            int8_weights=config.training.int8_weights,
        )
        if config.training.zero_init_residual:
            zero_residual_branches(model)
        if config.training.activation_checkpointing:
            model.call_layer = recompute
        return Objective(model, config.loss.label_smoothing, config.loss.r_drop, config.loss.guided_alignment)

    def _build_scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        # LambdaLR counts applied updates from 0; skipped updates do not count.
        config = self._config
        width, schedule, updates = config.model.d_model, config.schedule, config.training.max_updates
        return LambdaLR(optimizer, lambda applied: learning_rate(applied + 1, width, schedule, updates))

    def step(self, update: Update, number: int) -> Step:
        """Compute an update, without waiting for its losses. A gradient that is not finite changes nothing.

        DeepSpeed divides the gradient by accumulation steps x world size, which is the number of micro-batches. So the
        summed loss of a micro-batch is multiplied by that number and divided by the target tokens of the whole update:
        in any layout, the gradient is that of the mean loss per target token of the update, times the loss scale.

        Args:
            update: This rank's share of the update.
            number: Number of the update, from 1. Dropout masks are a function of seed, update and micro-batch.
        """
        before, rate = self.skipped, self.learning_rate
        losses: list[LossSums] = []
        micro_batches = self._config.batch.micro_batch_count
        numbers = deal(micro_batches, self._world.rank, self._world.world_size)
        scale = self._precision.begin_update()
        factor = micro_batches / update.tgt_tokens * scale
        with peer_errors():
            with self._precision.rounded_weights():
                for micro_batch, batch in zip(numbers, update.batches, strict=True):
                    # DeepSpeed wants a step after each backward pass. The last one, below, applies the update.
                    if losses:
                        self._engine.step()
                    torch.manual_seed(dropout_seed(self._config.training.seed, number, micro_batch))
                    sums = self._engine(*batch.to(self._world.device))  # Objective.forward
                    self._engine.backward(sums.loss * factor)
                    losses.append(sums.detach())
            total = LossSums.total(losses)
            self._finite.send(total.loss.isfinite())  # before the norm of the gradient, for which the host waits anyway
            self._precision.finish_gradients()
            self._engine.step()
        overflow = self.skipped > before
        if not overflow:
            self._partition.add_to_average(number - self.skipped)
        lowers_scale = overflow and self._precision.loss_scale.can_fall
        self._precision.loss_scale.update(overflow=overflow)
        parts = torch.stack([sums.loss for sums in losses])
        return Step(total, parts, rate, self._finite.read(), overflow, lowers_scale)

    def try_update(self, batches: Iterable[PackedBatch]) -> None:
        """Compute micro-batches forward and backward, and forget them: a trial of memory. Not collective.

        The hooks of DeepSpeed, which would communicate, are not called: neither those of the module nor those of the
        gradients. At ZeRO stage 3, where the module lacks its weights without them, another model takes its place. It
        has whole weights, as stage 3 gathers them.

        Args:
            batches: This rank's micro-batches.

        Raises:
            RuntimeError: Memory ran out, or another failure.
            MemoryError: Likewise.
        """
        device, buffers = self._world.device, []
        if self._stage in (1, 2):  # those that DeepSpeed reduces gradients in; at stage 3 it has them already
            number, size = 1 + bool(self._engine.zero_overlap_comm()), self._engine.zero_reduce_bucket_size()
            buffers = [torch.empty(size, device=device) for _ in range(number)]
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self._precision.rounded_weights():
            objective = self._objective
            if self._stage == 3:
                objective = self._build_objective(self._precision.dtype).to(device)
            weights = [weight for weight in objective.parameters() if weight.requires_grad]
            gradients: tuple[Tensor, ...] = ()
            for batch in batches:  # the gradients of the one before are still there, as in an update
                sums = objective.forward(*batch.to(device))
                gradients = torch.autograd.grad(sums.loss, weights, allow_unused=True)
            del gradients
        del buffers

    def set_micro_batches(self, number: int) -> None:
        """Take updates in another number of micro-batches, before the first one."""
        self._config = self._config.with_micro_batches(number)
        self._engine.set_train_batch_size(number)
        if self._stage:  # DeepSpeed changes its engine only
            self._engine.optimizer.gradient_accumulation_steps = self._engine.gradient_accumulation_steps()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self._engine.get_lr()[0])

    @property
    def grad_norm(self) -> float:
        """The global gradient norm of the last update before clipping; infinite or NaN if the update was skipped."""
        norm = self._engine.get_global_grad_norm()
        return self._precision.grad_norm if norm is None else float(norm)

    @property
    def loss_scale(self) -> float:
        """The loss scale of fp16; 1 in other precisions."""
        return self._precision.loss_scale.value

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
        return self._partition.iter_weights()

    def snapshot(self) -> Snapshot:
        """Copy the shards that this rank writes and, on rank 0, all weights to CPU memory."""
        shards = self._partition.shards()
        if not self._stage:  # every rank has all of them
            shards = shards[self._world.rank :: self._world.world_size]
        copies = [
            shard._replace(tensors={kind: _copy_to_host(tensor) for kind, tensor in shard.tensors.items()})
            for shard in shards
        ]
        weights = {}
        for name, weight in self.iter_weights():  # gathering is collective
            if self._world.is_rank0:
                weights[name] = _copy_to_host(weight)
        if self._world.device.type == "cuda":
            torch.cuda.synchronize()
        return Snapshot(copies, weights)

    @property
    def state(self) -> EngineState:
        """The state beside weights and moments."""
        return EngineState(self.skipped, self._precision.loss_scale.state)

    def load(self, shards: Path, step: int, state: EngineState) -> None:
        """Go on from a checkpoint that any number of processes wrote, at any ZeRO stage and precision.

        Args:
            shards: The folder of its weights and moments.
            step: Number of updates computed so far.
            state: What it holds beside them.

        Raises:
            DataError: The files cannot be read, or do not hold this model.
        """
        with self._world.collective_errors(), ShardReader(shards) as reader:
            self._partition.read(reader)
        self._partition.spread()
        applied = step - state.skipped
        self._partition.set_step(applied)
        self._engine.global_steps = step
        self._engine.skipped_steps = state.skipped
        scheduler = self._engine.lr_scheduler
        scheduler.last_epoch = applied
        # scheduler.step() would warn that no update came before it.
        for group, factor in zip(self._engine.optimizer.param_groups, scheduler.base_lrs, strict=True):
            group["lr"] = factor * scheduler.lr_lambdas[0](applied)
        self._precision.loss_scale.resume(state.loss_scale)


def _copy_to_host(tensor: Tensor) -> Tensor:
    """Copy a tensor, from a GPU into page-locked memory, which PyTorch reuses; that copy is still under way."""
    copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copied.copy_(tensor, non_blocking=True)


def dropout_seed(seed: int, update: int, micro_batch: int) -> int:
    """A 63-bit seed that differs between all micro-batches of all updates and is the same on every machine."""
    return int(np.random.SeedSequence((seed, update, micro_batch)).generate_state(1, np.uint64)[0] >> np.uint64(1))
