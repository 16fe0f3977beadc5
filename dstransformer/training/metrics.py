"""Training metrics between two log records, how much of its GPU a run uses, and what a run costs."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace

import torch

from dstransformer.config import Config, Precision
from dstransformer.data.loader import Update
from dstransformer.data.plan import LengthSums
from dstransformer.distributed.world import World
from dstransformer.model import training_flops
from dstransformer.training.checkpoints.format import Cost
from dstransformer.training.engine import Engine, Step

#: Peak FLOP/s of dense bf16 and fp16 matrix products with fp32 accumulation. NVIDIA's data sheets often state twice as
#: much, for sparse matrices. The first name that is a word of the device's name counts.
DENSE_PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H800": 989e12,
    "GH200": 989e12,
    "H20": 148e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
}


class TrainingMetrics:
    """Accumulates losses, token counts and time. Waits for the device only to make a record."""

    def __init__(self, world: World, device_use: DeviceUse) -> None:
        self._world = world
        self._device_use = device_use
        self._skipped = 0
        self._terms: list[str] = []
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

    def add(self, update: Update, result: Step, *, nonfinite: bool) -> None:
        """Add an update: what it holds, and what this rank made of it.

        If its loss is not finite on some rank (``nonfinite``), the means leave it out.
        """
        if not nonfinite:
            self._losses.append(torch.stack([result.losses.loss, *result.losses.terms.values()]))
            self._terms = list(result.losses.terms)
            self._loss_tokens += update.tgt_tokens
        self._updates += 1
        self._src_tokens += update.src_tokens
        self._tgt_tokens += update.tgt_tokens
        self._learning_rate = result.learning_rate
        self._last = time.monotonic()

    def summarise(self, engine: Engine) -> dict[str, float]:
        """Make a record of all updates since the last record. Collective.

        Loss and perplexity are NaN if the loss of no update was finite.
        """
        loss, terms = math.nan, {"nll": math.nan}
        if self._losses:
            sums = self._world.all_reduce(torch.stack(self._losses).double().sum(dim=0).cpu()).tolist()
            loss, *means = (total / self._loss_tokens for total in sums)
            terms = dict(zip(self._terms, means, strict=True))
        seconds = time.monotonic() - self._began
        skipped = engine.skipped
        record = {
            "loss": loss,
            "perplexity": math.exp(min(terms.pop("nll"), 700.0)),
            **{f"{name}_loss": mean for name, mean in terms.items()},
            "lr": self._learning_rate,
            "grad_norm": engine.grad_norm,
            "loss_scale": engine.loss_scale,
            "skipped_share": (skipped - self._skipped) / self._updates,
            "src_tokens": self._src_tokens,
            "tgt_tokens": self._tgt_tokens,
            "src_tokens_per_second": self._src_tokens / seconds,
            "tgt_tokens_per_second": self._tgt_tokens / seconds,
            "tokens_per_second": (self._src_tokens + self._tgt_tokens) / seconds,
            **self._device_use.metrics(seconds),
        }
        self._skipped = skipped
        self._clear()
        return record

    def _clear(self) -> None:
        self._device_use.clear()
        self._losses: list[torch.Tensor] = []
        self._terms = []
        self._loss_tokens = 0
        self._updates = 0
        self._src_tokens = 0
        self._tgt_tokens = 0
        self._learning_rate = 0.0
        self._began = self._last = time.monotonic()


class CostMeter:
    """Adds up the cost of a run, and the tokens that this process has seen.

    It needs no messages between ranks, as every rank knows the lengths of an update.

    Args:
        config: The configuration.
        vocab_size: Number of pieces of the tokenizer.
        devices: Number of processes.

    Attributes:
        flops: Operations of the updates that this process has taken part in, over all ranks; both passes of R-Drop.
    """

    def __init__(self, config: Config, vocab_size: int, devices: int) -> None:
        self._config = config
        self._rows = config.model.embedding_rows(vocab_size)
        self._devices = devices
        self._spent = Cost()
        self.flops = 0
        self._tokens = 0
        self._began: float | None = None

    def resume(self, spent: Cost) -> None:
        """Continue from the cost in a checkpoint."""
        self._spent = spent

    def start_clock(self) -> None:
        """Count time from now on."""
        self._began = time.monotonic()

    def add(self, sums: LengthSums) -> None:
        """Count an update with these sentences, over all ranks."""
        self.flops += self._config.loss.passes * training_flops(self._config.model, self._rows, sums)
        self._tokens += sums.src_tokens + sums.tgt_tokens

    @property
    def total(self) -> Cost:
        """The cost up to now. On ranks other than 0 the time may differ a little; rank 0's is the one on record."""
        return replace(
            self._spent,
            flops=self._spent.flops + self.flops,
            device_seconds=self._spent.device_seconds + self._seconds * self._devices,
        )

    @property
    def totals(self) -> dict[str, float]:
        """The cost by name, and ``overall_tokens_per_second`` since the run started or resumed.

        That covers the training loop, with validation and checkpoints.
        """
        totals, seconds = self.total.metrics(), self._seconds
        return totals | ({"overall_tokens_per_second": self._tokens / seconds} if self._tokens else {})

    @property
    def _seconds(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began


def datasheet_peak(name: str) -> float | None:
    """Peak FLOP/s of dense bf16 products of the device with this name; None if unknown."""
    return next((peak for part, peak in DENSE_PEAKS.items() if re.search(rf"\b{part}\b", name)), None)


class DeviceUse:
    """Compares the operations of updates with what the GPUs could do, all taken to be like that of this rank.

    On a CPU it says nothing.
    """

    def __init__(self, cost: CostMeter, precision: Precision, world: World) -> None:
        self._cost = cost
        self._devices = world.world_size
        self._device = world.device if world.device.type == "cuda" else None
        is_half = self._device is not None and precision != "fp32"  # data sheets give the peak of half precision
        self._peak = datasheet_peak(torch.cuda.get_device_name(self._device)) if is_half else None
        self._before = cost.flops

    def clear(self) -> None:
        """Forget the updates so far."""
        self._before = self._cost.flops

    def metrics(self, seconds: float) -> dict[str, float]:
        """``memory_gib`` and ``mfu`` of the updates since the last :meth:`clear`, which took so many seconds.

        The memory is what nvidia-smi shows of this rank's GPU, other processes included. MFU (Chowdhery et al., 2022)
        is the operations of forward and backward pass, without what is computed again, over the GPUs' dense peak in
        half precision; not in fp32, and not for a GPU that :func:`datasheet_peak` does not know.
        """
        if self._device is None:
            return {}
        free, total = torch.cuda.mem_get_info(self._device)
        metrics = {"memory_gib": (total - free) / 2**30}
        if self._peak is not None:
            metrics["mfu"] = (self._cost.flops - self._before) / (seconds * self._devices * self._peak)
        return metrics
