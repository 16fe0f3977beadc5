"""Measures training: the engine as used by ``dst train``, and the same arithmetic in a bare loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch._dynamo.utils import counters

from benchmarks.gpu.cases import Case
from benchmarks.gpu.profiling import Profile, make_profile
from benchmarks.gpu.text import build_updates
from benchmarks.lib.bare import BareStepper
from benchmarks.lib.limits import Limits, measure_limits, synchronize
from dstransformer.config import Config, compose
from dstransformer.data.loader import Update
from dstransformer.data.plan import build_budget
from dstransformer.distributed.world import World
from dstransformer.model import training_flops
from dstransformer.training.engine import Engine

#: Number of updates in a profile.
PROFILED = 2


class Stepper(Protocol):
    """Computes updates, one after the other."""

    def step(self, update: Update) -> torch.Tensor:
        """Compute an update; return its summed loss, on the device."""


class EngineStepper:
    """Does what the loop of ``dst train`` does for every update."""

    def __init__(self, config: Config, vocabulary: int, world: World) -> None:
        self._world = world
        self._engine = Engine(config, compose(config, world.world_size), vocabulary, world)
        self._number = 0

    def step(self, update: Update) -> torch.Tensor:
        self._number += 1
        _ = self._engine.learning_rate
        losses = self._engine.step(update, self._number).losses
        self._world.any(False, False, False)
        return losses.loss


@dataclass(frozen=True)
class Training:
    """The measurements of a training case.

    Attributes:
        seconds: Time of an update, one value per round.
        host_seconds: Time per update until the host has submitted all work to the device. Equals ``seconds`` if the
            device waits for the host, or if the host waits for the device at every update.
        src_tokens: Mean source tokens per update.
        tgt_tokens: Mean target tokens per update.
        flops: Mean operations of the model per update, without padding.
        limits: Limits of the device, measured in the same process.
        peak_bytes: Peak memory allocated for tensors.
        reserved_bytes: Peak memory that the allocator reserved on the device.
        warm_up_seconds: Time of the first round, including compilation.
        graphs: Number of graphs that ``torch.compile`` has made.
        first_loss: Nats per target token in the first round.
        last_loss: The same in the last round, on the same text.
        profile: The profile, if requested.
    """

    seconds: list[float]
    host_seconds: list[float]
    src_tokens: float
    tgt_tokens: float
    flops: float
    limits: Limits
    peak_bytes: int
    reserved_bytes: int
    warm_up_seconds: float
    graphs: int
    first_loss: float
    last_loss: float
    profile: Profile | None


def measure_training(case: Case, world: World) -> Training:
    """Run a case on the device of this process."""
    device, work = world.device, case.work
    limits = measure_limits(case.precision, work.product, device)
    config = case.load_config()
    updates = build_updates(build_budget(config.batch), work.updates, work.vocabulary)
    if device.type == "cuda":
        updates = [_pin(update) for update in updates]
    stepper: Stepper = (
        EngineStepper(config, work.vocabulary, world)
        if case.loop == "engine"
        else BareStepper(config, work.vocabulary, case.precision, device)
    )
    warm_up, _, first_loss = _time_round(stepper, updates, device)
    _reset_memory(device)
    seconds, host_seconds, last_loss = [], [], first_loss
    for _ in range(work.rounds):
        total, host, last_loss = _time_round(stepper, updates, device)
        seconds.append(total / len(updates))
        host_seconds.append(host / len(updates))
    if not last_loss < first_loss:  # also true for NaN
        raise SystemExit(f"the loss went from {first_loss:.3f} to {last_loss:.3f} nats per token: it must decrease")
    peak_bytes, reserved_bytes = _memory(device)
    found = None
    if case.profile:
        upcoming = iter(updates * PROFILED)
        trace = None if case.trace is None else Path(case.trace, case.name)
        found = make_profile(lambda: stepper.step(next(upcoming)), PROFILED, device, trace)
    return Training(
        seconds=seconds,
        host_seconds=host_seconds,
        src_tokens=sum(update.src_tokens for update in updates) / len(updates),
        tgt_tokens=sum(update.tgt_tokens for update in updates) / len(updates),
        flops=update_flops(config, work.vocabulary, updates),
        limits=limits,
        peak_bytes=peak_bytes,
        reserved_bytes=reserved_bytes,
        warm_up_seconds=warm_up,
        graphs=counters["stats"]["unique_graphs"],
        first_loss=first_loss,
        last_loss=last_loss,
        profile=found,
    )


def update_flops(config: Config, vocabulary: int, updates: Sequence[Update]) -> float:
    """Mean operations of forward and backward per update; see :func:`dstransformer.model.training_flops`."""
    rows = config.model.embedding_rows(vocabulary)
    return sum(training_flops(config.model, rows, update.sums) for update in updates) / len(updates)


def _time_round(stepper: Stepper, updates: list[Update], device: torch.device) -> tuple[float, float, float]:
    """Seconds for all updates, seconds until the host had submitted them, and the loss per target token."""
    synchronize(device)
    began = time.perf_counter()
    losses = [stepper.step(update) for update in updates]
    host = time.perf_counter() - began
    synchronize(device)
    total = time.perf_counter() - began
    tokens = sum(update.tgt_tokens for update in updates)
    return total, host, float(torch.stack(losses).sum()) / tokens


def _pin(update: Update) -> Update:
    return replace(update, batches=[batch.pin_memory() for batch in update.batches])


def _reset_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _memory(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
