"""Adam (section 5.3), frozen parameters, the loss scale of fp16, and the moving average of the weights."""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dstransformer.config.schema import OptimizerConfig
from dstransformer.io.command import stopped_by_signals
from dstransformer.training.checkpoints.format import LossScaleState

#: DeepSpeed's values for keys that the ``fp16`` section leaves out.
LOSS_SCALE_DEFAULTS = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "consecutive_hysteresis": False,
}

#: The learned positions of both sides, and the embedding of another source vocabulary.
_EMBEDDINGS = ("embedding", "src_embedding", "src_input", "tgt_input")


def build_optimizer(
    parameters: Iterable[nn.Parameter], config: OptimizerConfig, *, offloaded: bool
) -> torch.optim.Optimizer:
    """Build Adam with learning rate 1, which the schedule scales.

    Args:
        parameters: The parameters of the model.
        config: The betas, epsilon and decoupled weight decay.
        offloaded: Use DeepSpeed's vectorised Adam for optimizer states in CPU memory. It is compiled at first use and
            needs a C++ compiler.

    Raises:
        Stopped: A signal came while it was compiled.
    """
    values: dict[str, Any] = {"lr": 1.0, "betas": (config.beta1, config.beta2), "eps": config.eps}
    if offloaded:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        with _prints_logged(), stopped_by_signals():  # there is nothing to save yet, and compilers take minutes
            adam: torch.optim.Optimizer = DeepSpeedCPUAdam(parameters, **values, weight_decay=config.weight_decay)
        return adam
    if config.weight_decay:
        return torch.optim.AdamW(parameters, **values, weight_decay=config.weight_decay, fused=True)
    return torch.optim.Adam(parameters, **values, fused=True)


@contextmanager
def _prints_logged() -> Iterator[None]:
    """Log what C++ code prints in the block with DeepSpeed's lines: standard output is for results."""
    flush = ctypes.CDLL(None).fflush
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        flush(None)
        stdout = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            yield
        finally:
            flush(None)
            os.dup2(stdout, 1)
            os.close(stdout)
            printed.seek(0)
            for line in printed:
                logging.getLogger("DeepSpeed").info(line.rstrip())


def is_frozen(name: str, parts: Collection[str]) -> bool:
    """Whether a parameter belongs to one of the parts: ``embedding``, ``softmax``, ``encoder``, ``decoder.0`` …"""
    top, _, rest = name.partition(".")
    if top in _EMBEDDINGS:
        return "embedding" in parts
    if top in ("softmax", "output_bias"):
        return "softmax" in parts
    side = top.removesuffix("_norm")
    return side in parts or f"{side}.{rest.partition('.')[0]}" in parts


def freeze(model: nn.Module, parts: Collection[str]) -> None:
    """Make the gradients of all parameters of ``training.freeze`` zero: Adam and Muon leave them as they are.

    Nothing else differs from other runs: moments, partitions and checkpoints have the same form at every ZeRO stage.
    """
    for name, parameter in model.named_parameters():
        if is_frozen(name, parts):
            parameter.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]


class LossScale:
    """The loss scale of fp16 (Micikevicius et al., 2018, section 3.2).

    It is a factor with which small gradients are not zero in fp16, and large ones not infinite.

    The keys are those of DeepSpeed's ``fp16`` section, with their meaning there. The scale is halved when a gradient is
    not finite, once ``hysteresis`` such updates have been seen, and doubled after ``loss_scale_window`` updates without
    one. A ``loss_scale`` other than 0 never changes.

    Args:
        section: The ``fp16`` section of the DeepSpeed configuration.
    """

    def __init__(self, section: Mapping[str, Any]) -> None:
        given = {**LOSS_SCALE_DEFAULTS, **section}
        self._fixed = bool(given["loss_scale"])
        self._window = int(given["loss_scale_window"])
        self._least = float(given["min_loss_scale"])
        self._hysteresis = int(given["hysteresis"])
        self._refills = bool(given["consecutive_hysteresis"])
        start = float(given["loss_scale"]) or 2.0 ** given["initial_scale_power"]
        self.state = LossScaleState(start, 0, self._hysteresis)

    @property
    def value(self) -> float:
        """The factor of the next update."""
        return self.state.value

    @property
    def can_fall(self) -> bool:
        """Whether a gradient that is not finite can be due to the scale: it is not fixed, and not at its minimum."""
        return not self._fixed and (self.value > self._least or self.state.hysteresis > 1)

    def update(self, *, overflow: bool) -> None:
        """Account for an update, whose gradient was not finite (``overflow``) or was."""
        if self._fixed:
            return
        state = self.state
        if overflow:
            left = state.hysteresis - 1
            value = state.value if left > 0 else max(state.value / 2.0, self._least)
            self.state = LossScaleState(value, 0, max(left, 1))
            return
        state = replace(state, finite=state.finite + 1)
        if self._refills:
            state = replace(state, hysteresis=self._hysteresis)
        if self._window and state.finite % self._window == 0:
            state = replace(state, value=2.0 * state.value, hysteresis=self._hysteresis)
        self.state = state

    def resume(self, state: LossScaleState) -> None:
        """Continue from a checkpoint. A fixed scale stays."""
        if not self._fixed:
            self.state = replace(state, value=max(state.value, self._least))


def ema_weight(decay: float, updates: int) -> float:
    """The share of the average that stays after update ``updates``, from 1: ``min(decay, (1 + n) / (10 + n))``.

    The average starts at the initial weights. The smaller shares of the first updates let it forget them.
    """
    return min(decay, (1 + updates) / (10 + updates))


class WeightAverage:
    """An exponential moving average of the weights (Polyak and Juditsky, 1992, with exponentially decaying shares).

    It holds, in fp32, the average of the weights that this rank updates: all of them, or its partition in ZeRO.

    Attributes:
        averages: The average of each of them.

    Args:
        masters: The weights that the optimizer updates in place.
        decay: See :func:`ema_weight`.
    """

    def __init__(self, masters: Sequence[Tensor], decay: float) -> None:
        self._masters = [master.detach() for master in masters]
        self.averages = [master.float().clone() for master in self._masters]
        self._decay = decay

    @torch.no_grad()
    def add(self, updates: int) -> None:
        """Include the weights after an update that was applied.

        Args:
            updates: Number of updates applied so far.
        """
        weights = [master.float() for master in self._masters]
        torch._foreach_lerp_(self.averages, weights, 1.0 - ema_weight(self._decay, updates))

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Put the average in the place of the weights for a while. CPU memory holds the weights meanwhile."""
        with torch.no_grad():
            held = [master.to("cpu", copy=True) for master in self._masters]
            torch._foreach_copy_(self._masters, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                for master, weights in zip(self._masters, held, strict=True):
                    master.copy_(weights)
