"""The loss scale of fp16 (Micikevicius et al., 2018, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dstransformer.checkpoints.format import LossScaleState

#: DeepSpeed's values for keys that the ``fp16`` section leaves out.
DEFAULTS = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "consecutive_hysteresis": False,
}


class LossScale:
    """Finds a factor for the loss with which small gradients are not zero in fp16, and large ones not infinite.

    The keys are those of DeepSpeed's ``fp16`` section, with their meaning there. The scale is halved when a gradient is
    not finite, once ``hysteresis`` such updates have been seen, and doubled after ``loss_scale_window`` updates without
    one. A ``loss_scale`` other than 0 never changes.

    Args:
        section: The ``fp16`` section of the DeepSpeed configuration.
    """

    def __init__(self, section: Mapping[str, Any]) -> None:
        given = {**DEFAULTS, **section}
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
        """Go on from a checkpoint. A fixed scale stays."""
        if not self._fixed:
            self.state = replace(state, value=max(state.value, self._least))
