"""The DeepSpeed engine. The only caller of ``deepspeed.initialize``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
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
from dstransformer.model.ops import RoundedWeights
from dstransformer.training.checkpoints.format import EngineState, Snapshot
from dstransformer.training.checkpoints.shards import EMA, WEIGHT, ShardReader
from dstransformer.training.muon import Muon
from dstransformer.training.optim import LossScale, WeightAverage, build_optimizer, freeze
from dstransformer.training.partition import Partition
from dstransformer.training.runtime import gather_rounded, import_deepspeed, rejections
from dstransformer.training.schedule import learning_rate

#: What DeepSpeed itself is told of the precision.
_FP32 = {"bf16": {"enabled": False}, "fp16": {"enabled": False}}

#: The devices on which weights are rounded to half precision once an update, below ZeRO stage 3. On a CPU a product
#: takes much longer than the rounding of its weights.
ROUND_ONCE = {"cuda"}


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

    Mixed precision is that of Micikevicius et al. (2018): the model computes in bf16 or fp16, and DeepSpeed is given
    weights in fp32. So the gradients of an update are summed, over micro-batches and ranks, in fp32 at every ZeRO
    stage. DeepSpeed's own ``bf16`` and ``fp16`` would sum them in half precision, where small ones get lost.

    Args:
        config: The experiment.
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
        self._dtype = dtype = DTYPES[precision_of(ds_config)]
        self._loss_scale = LossScale(ds_config["fp16"]) if dtype == torch.float16 else None
        if world.device.type == "cuda":
            torch.set_float32_matmul_precision("high" if config.training.tf32 else "highest")
        torch.manual_seed(config.training.seed)
        model = self._build_model(dtype)
        if initial is not None:
            with world.collective_errors():
                initial(model)
        self._objective = self._build_objective(model).to(world.device)
        freeze(model, config.training.freeze)
        # A CPU without instructions for half precision takes forty times as long in it as in fp32.
        precision = dtype if world.device.type == "cuda" else torch.float32
        self._muon = Muon(model, config.optimizer, precision) if config.optimizer.name == "muon" else None
        optimizer: torch.optim.Optimizer = self._muon or build_optimizer(
            model.parameters(), config.optimizer, offloaded=offloads_optimizer(ds_config)
        )
        with rejections():
            self._engine, self._optimizer, _, _ = deepspeed.initialize(
                model=self._objective,
                optimizer=optimizer,
                lr_scheduler=self._build_scheduler,
                config={**ds_config, **_FP32},
                dist_init_required=False,
            )
        self._partition = Partition(self._engine, model, world, by_muon=self._muon.names if self._muon else ())
        if self._muon is not None:
            self._muon.connect(dict(self._partition.places()), world)
        self._rounded_weights = self._build_rounded_weights(dtype)
        masters = [shard.tensors[WEIGHT] for shard in self._partition.shards()]
        self._ema = WeightAverage(masters, config.optimizer.ema_decay) if config.optimizer.ema_decay else None
        self._grad_norm: float | None = None
        self._finite = _HostFlag(world.device)
        if not self._stage:
            self._optimizer.register_step_pre_hook(_skip_overflow)

    def _build_model(self, dtype: torch.dtype) -> Transformer:
        """The model with its random initial weights, in fp32."""
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
        return model

    def _build_objective(self, model: Transformer) -> Objective:
        loss = self._config.loss
        return Objective(model, loss.label_smoothing, loss.r_drop, loss.guided_alignment)

    def _build_rounded_weights(self, dtype: torch.dtype) -> Callable[[], AbstractContextManager[None]]:
        """Within what it returns the model finds its weights rounded. At stage 3 they are rounded to be gathered.

        Not with 8-bit weights, which are those of the fp32 weights.
        """
        if dtype == torch.float32 or self._config.training.int8_weights:
            return nullcontext
        if self._stage == 3:
            gather_rounded(self._engine.module, dtype)
        if self._stage == 3 or self._world.device.type not in ROUND_ONCE:
            return nullcontext
        return RoundedWeights(self._engine.module.parameters(), dtype).in_use

    def _build_scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        # LambdaLR counts applied updates from 0; skipped updates do not count.
        config = self._config
        width, schedule, updates = config.model.d_model, config.schedule, config.training.max_updates
        return LambdaLR(optimizer, lambda applied: learning_rate(applied + 1, width, schedule, updates))

    def step(self, update: Update, number: int) -> Step:
        """Compute an update, without waiting for its losses. A gradient that is not finite changes nothing.

        DeepSpeed divides the gradient by accumulation steps x world size, which is the number of micro-batches. So the
        summed loss of a micro-batch is multiplied by that number and divided by the target tokens of the whole update:
        in any layout, the gradient is that of the mean loss per target token of the update.

        Args:
            update: This rank's share of the update.
            number: Number of the update, from 1. Dropout masks are a function of seed, update and micro-batch.
        """
        before, rate = self.skipped, self.learning_rate
        losses: list[LossSums] = []
        factor = self._loss_factor(update.tgt_tokens)
        numbers = deal(self._config.batch.micro_batch_count, self._world.rank, self._world.world_size)
        with peer_errors(), self._rounded_weights():
            for micro_batch, batch in zip(numbers, update.batches, strict=True):
                if losses:
                    self._engine.step()  # accumulates only
                torch.manual_seed(dropout_seed(self._config.training.seed, number, micro_batch))
                sums = self._engine(*batch.to(self._world.device))
                self._engine.backward(sums.loss * factor)
                losses.append(sums.detach())
            total = LossSums.total(losses)
            self._finite.send(total.loss.isfinite())  # before the norm of the gradient, for which the host waits anyway
            if not self._stage:
                self._finish_gradients()
            self._engine.step()
        overflow = self.skipped > before
        if self._ema is not None and not overflow:
            self._ema.add(number - self.skipped)
        lowers_scale = overflow and self._loss_scale is not None and self._loss_scale.can_fall
        if self._loss_scale is not None:
            self._loss_scale.update(overflow=overflow)
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
        device = self._world.device
        buffers = self._build_buffers()
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self._rounded_weights():
            objective = self._objective
            if self._stage == 3:
                objective = self._build_objective(self._build_model(self._dtype)).to(device)
            weights = [weight for weight in objective.parameters() if weight.requires_grad]
            gradients: tuple[Tensor, ...] = ()
            for batch in batches:  # the gradients of the one before are still there, as in an update
                sums = objective.forward(*batch.to(device))
                gradients = torch.autograd.grad(sums.loss, weights, allow_unused=True)
            del gradients
        del buffers

    def _build_buffers(self) -> list[Tensor]:
        """As many buffers as DeepSpeed reduces gradients in; at ZeRO stage 3 it has them from the beginning."""
        if self._stage not in (1, 2):
            return []
        count, size = 1 + bool(self._engine.zero_overlap_comm()), self._engine.zero_reduce_bucket_size()
        return [torch.empty(size, device=self._world.device) for _ in range(count)]

    def set_micro_batches(self, number: int) -> None:
        """Take updates in another number of micro-batches, before the first one."""
        self._config = self._config.with_micro_batches(number)
        self._engine.set_train_batch_size(number)
        if self._stage:  # DeepSpeed changes its engine only
            self._optimizer.gradient_accumulation_steps = self._engine.gradient_accumulation_steps()

    def _loss_factor(self, tgt_tokens: int) -> float:
        """The factor of the summed loss of a micro-batch, in an update of ``tgt_tokens`` target tokens."""
        factor = self._config.batch.micro_batch_count / tgt_tokens
        if self._stage:
            self._optimizer.loss_scaler.cur_scale = self.loss_scale  # DeepSpeed multiplies the loss by it
            return factor
        return factor * self.loss_scale

    @torch.no_grad()
    def _finish_gradients(self) -> None:
        """Without ZeRO: divide the reduced gradients by the loss scale, and compute their norm.

        Marks gradients that are not finite as overflow: the update is then skipped and DeepSpeed counts it, as with
        ZeRO.
        """
        gradients = [p.grad for p in self._engine.module.parameters() if p.grad is not None]
        if self.loss_scale != 1.0:
            torch._foreach_div_(gradients, self.loss_scale)
        self._grad_norm = float(torch.nn.utils.get_total_norm(gradients))
        self._optimizer.overflow = not math.isfinite(self._grad_norm)

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
        return float("nan") if norm is None else float(norm)

    @property
    def loss_scale(self) -> float:
        """The loss scale of fp16; 1 in other precisions."""
        return 1.0 if self._loss_scale is None else self._loss_scale.value

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
        averaged = self._ema is not None
        with nullcontext() if self._ema is None else self._ema.in_place_of_weights():
            yield from self._partition.iter_weights(gather=averaged)

    def snapshot(self) -> Snapshot:
        """Copy the shards that this rank writes and, on rank 0, all weights to CPU memory."""
        shards = self._partition.shards()
        if self._ema is not None:
            shards = [
                shard._replace(tensors={**shard.tensors, EMA: average})
                for shard, average in zip(shards, self._ema.averages, strict=True)
            ]
        own = shards if self._stage else shards[self._world.rank :: self._world.world_size]
        copies = [
            shard._replace(tensors={kind: _copy_to_host(tensor) for kind, tensor in shard.tensors.items()})
            for shard in own
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
        return EngineState(self.skipped, None if self._loss_scale is None else self._loss_scale.state)

    def load(self, shards: Path, step: int, state: EngineState) -> None:
        """Go on from a checkpoint that any number of processes wrote, at any ZeRO stage and precision.

        Args:
            shards: The folder of its weights and moments.
            step: Number of updates computed so far.
            state: The state beside them.

        Raises:
            DataError: The files cannot be read, or do not hold this model.
        """
        with self._world.collective_errors(), ShardReader(shards) as reader:
            self._partition.read(reader, None if self._ema is None else self._ema.averages)
        self._partition.spread()
        applied = step - state.skipped
        self._partition.set_step(applied)
        self._engine.global_steps = step
        self._engine.skipped_steps = state.skipped
        scheduler = self._engine.lr_scheduler
        scheduler.last_epoch = applied
        # scheduler.step() would warn that no update came before it.
        for group, factor in zip(self._optimizer.param_groups, scheduler.base_lrs, strict=True):
            group["lr"] = factor * scheduler.lr_lambdas[0](applied)
        if self._loss_scale is not None and state.loss_scale is not None:
            self._loss_scale.resume(state.loss_scale)


def _copy_to_host(tensor: Tensor) -> Tensor:
    """Copy a tensor, from a GPU into page-locked memory, which PyTorch reuses; that copy is still under way."""
    copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copied.copy_(tensor, non_blocking=True)


def dropout_seed(seed: int, update: int, micro_batch: int) -> int:
    """A 63-bit seed that differs between all micro-batches of all updates and is the same on every machine."""
    return int(np.random.SeedSequence((seed, update, micro_batch)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _skip_overflow(optimizer: Any, *_: object) -> None:
    """On overflow, drop the gradients, so that Adam does nothing."""
    if optimizer.overflow:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
