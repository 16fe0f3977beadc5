"""Mixed precision: rounded weights, the loss scale of fp16, and gradients that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dstransformer.config import precision_of, zero_stage
from dstransformer.model import DTYPES
from dstransformer.model.ops import RoundedWeights
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


class MixedPrecision:
    """What the model computes in, on weights in fp32 (Micikevicius et al., 2018).

    The model computes in bf16 or fp16, and DeepSpeed is given weights in fp32. So the gradients of an update are
    summed, over micro-batches and ranks, in fp32 at every ZeRO stage. DeepSpeed's own ``bf16`` and ``fp16`` would sum
    them in half precision, where small ones get lost.

    With ZeRO, DeepSpeed divides gradients by the loss scale, takes their norm, and skips an update whose gradient is
    not finite. Without ZeRO it does so in its own half precision only, so that it is done here.

    Args:
        engine: DeepSpeed's engine.
        ds_config: The complete DeepSpeed configuration.
        device: The device of this process.
        int8_weights: Whether products round weights to 8 bits, which are those of the fp32 weights.

    Attributes:
        dtype: The precision of the products.
        loss_scale: That of fp16; in other precisions it is 1 and stays so.
        rounded_weights: Builds a context in which the model finds its weights rounded, if that saves time: on a CPU a
            product takes much longer than the rounding of its weights.
        grad_norm: Without ZeRO, the norm of the last gradient.
    """

    def __init__(self, engine: Any, ds_config: Mapping[str, Any], device: torch.device, *, int8_weights: bool) -> None:
        self.dtype = dtype = DTYPES[precision_of(ds_config)]
        self.loss_scale = LossScale(ds_config["fp16"] if dtype == torch.float16 else {"loss_scale": 1})
        self.rounded_weights: Callable[[], AbstractContextManager[None]] = nullcontext
        self.grad_norm = math.nan
        self._engine, self._stage = engine, zero_stage(ds_config)
        if dtype != torch.float32 and not int8_weights:
            if self._stage == 3:
                _gather_rounded(engine.module, dtype)
            elif device.type == "cuda":
                self.rounded_weights = RoundedWeights(engine.module.parameters(), dtype).in_use
        if not self._stage:
            engine.optimizer.register_step_pre_hook(_skip_overflow)

    def begin_update(self) -> float:
        """What the losses of the next update have to be multiplied by; 1 with ZeRO, where DeepSpeed does it."""
        if not self._stage:
            return self.loss_scale.value
        self._engine.optimizer.loss_scaler.cur_scale = self.loss_scale.value  # DeepSpeed multiplies losses by it
        return 1.0

    @torch.no_grad()
    def finish_gradients(self) -> None:
        """Without ZeRO: divide the reduced gradients by the loss scale, and compute their norm.

        Marks gradients that are not finite as overflow: the update is then skipped and DeepSpeed counts it, as with
        ZeRO.
        """
        if self._stage:
            return
        gradients = [p.grad for p in self._engine.module.parameters() if p.grad is not None]
        if self.loss_scale.value != 1.0:
            torch._foreach_div_(gradients, self.loss_scale.value)
        self.grad_norm = float(torch.nn.utils.get_total_norm(gradients))
        self._engine.optimizer.overflow = not math.isfinite(self.grad_norm)


def _gather_rounded(model: nn.Module, dtype: torch.dtype) -> None:
    """At ZeRO stage 3, let the matrices of products travel in the precision of the products, which halves their bytes.

    The products round them to it anyway, so no result changes. The others stay in fp32: embeddings, as positions are
    added to them before the sum is rounded, and vectors. So do the parts that ranks keep, and gradients: DeepSpeed
    reads this attribute when it gathers weights for a module, and for nothing else unless it runs ``torch_autocast``.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.comm_dtype = dtype  # type: ignore[attr-defined]


def _skip_overflow(optimizer: Any, *_: object) -> None:
    """On overflow, drop the gradients, so that the optimizer does nothing."""
    if optimizer.overflow:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class LossScale:
    """The loss scale of fp16 (Micikevicius et al., 2018, section 3.2).

    It is a factor with which small gradients are not zero in fp16, and large ones not infinite.

    The keys are those of DeepSpeed's section ``fp16``, with their meaning there. The scale is halved when a gradient is
    not finite, once ``hysteresis`` such updates have been seen, and doubled after ``loss_scale_window`` updates without
    one. A ``loss_scale`` other than 0 never changes.

    Attributes:
        state: What a checkpoint holds of it; None of a scale that never changes.
    """

    def __init__(self, section: Mapping[str, Any]) -> None:
        settings = {**LOSS_SCALE_DEFAULTS, **section}
        self._fixed = float(settings["loss_scale"])
        self._window = int(settings["loss_scale_window"])
        self._least = float(settings["min_loss_scale"])
        self._hysteresis = int(settings["hysteresis"])
        self._refills = bool(settings["consecutive_hysteresis"])
        self.state: LossScaleState | None = None
        if not self._fixed:
            self.state = LossScaleState(2.0 ** settings["initial_scale_power"], 0, self._hysteresis)

    @property
    def value(self) -> float:
        """The factor of the next update."""
        return self._fixed if self.state is None else self.state.value

    @property
    def can_fall(self) -> bool:
        """Whether a gradient that is not finite can be due to the scale: it is not fixed, and not at its minimum."""
        return self.state is not None and (self.state.value > self._least or self.state.hysteresis > 1)

    def update(self, *, overflow: bool) -> None:
        """Account for an update, whose gradient was not finite (``overflow``) or was."""
        if (state := self.state) is None:
            return
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

    def resume(self, state: LossScaleState | None) -> None:
        """Continue from a checkpoint, which has none of a run in another precision. A fixed scale stays."""
        if self.state is not None and state is not None:
            self.state = replace(state, value=max(state.value, self._least))
