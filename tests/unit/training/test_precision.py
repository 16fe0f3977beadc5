"""The loss scale of fp16."""

from __future__ import annotations

from typing import Any

from dstransformer.training.checkpoints.format import LossScaleState
from dstransformer.training.precision import LossScale


def trace(section: dict[str, Any], overflows: str) -> list[float]:
    """The scale after each update; ``x`` is an overflow."""
    scale = LossScale(section)
    values = []
    for update in overflows:
        scale.update(overflow=update == "x")
        values.append(scale.value)
    return values


def test_the_loss_scale_is_halved_when_the_hysteresis_is_used_up_and_doubled_after_the_window() -> None:
    section = {"initial_scale_power": 3, "hysteresis": 2, "loss_scale_window": 3}
    assert trace(section, "xxx") == [8, 4, 2]
    assert trace(section, "x...xx") == [8, 8, 8, 16, 16, 8], "the window refills the hysteresis"
    assert trace(section, "x..x..") == [8, 8, 8, 4, 4, 4]
    assert trace({**section, "consecutive_hysteresis": True}, "x.x.") == [8, 8, 8, 8]


def test_the_loss_scale_never_falls_below_its_minimum_and_says_when_it_would() -> None:
    scale = LossScale({"initial_scale_power": 2, "hysteresis": 1, "min_loss_scale": 2})
    assert scale.can_fall
    scale.update(overflow=True)
    assert (scale.value, scale.can_fall) == (2, False)
    scale.update(overflow=True)
    assert scale.value == 2


def test_a_fixed_loss_scale_stays() -> None:
    scale = LossScale({"loss_scale": 1, "hysteresis": 1, "loss_scale_window": 1})
    for overflow in (True, False, True):
        scale.update(overflow=overflow)
    scale.resume(LossScaleState(64.0, 0, 1))
    assert (scale.value, scale.can_fall) == (1, False)


def test_the_loss_scale_resumes_from_a_checkpoint_within_the_minimum() -> None:
    scale = LossScale({"min_loss_scale": 4})
    scale.resume(LossScaleState(1.0, 7, 1))
    assert scale.state == LossScaleState(4.0, 7, 1)
