"""The loss scale of fp16, and the moving average of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dstransformer.training.checkpoints.format import LossScaleState
from dstransformer.training.optim import LossScale, WeightAverage, ema_weight


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


def test_the_weight_of_the_average_grows_to_the_decay() -> None:
    assert [ema_weight(0.999, updates) for updates in (1, 2, 90)] == pytest.approx([2 / 11, 3 / 12, 91 / 100])
    assert ema_weight(0.999, 10_000) == 0.999


def test_the_average_follows_its_formula_and_leaves_the_weights_unchanged() -> None:
    torch.manual_seed(1)
    weights = [torch.randn(3, 2), torch.randn(5)]
    average = WeightAverage(weights, 0.3)
    expected = [weight.clone() for weight in weights]
    for update in range(1, 8):
        for weight in weights:
            weight.add_(torch.randn_like(weight))
        held = [weight.clone() for weight in weights]
        average.add(update)
        share = min(0.3, (1 + update) / (10 + update))
        expected = [share * old + (1 - share) * new for old, new in zip(expected, weights, strict=True)]
        torch.testing.assert_close(average.averages, expected)
        with average.in_place_of_weights():
            torch.testing.assert_close(weights, expected)
        torch.testing.assert_close(weights, held, rtol=0, atol=0)


def test_the_weights_are_restored_after_a_failure() -> None:
    weights = [torch.zeros(2)]
    average = WeightAverage(weights, 0.5)
    weights[0] += 1
    with pytest.raises(RuntimeError), average.in_place_of_weights():
        raise RuntimeError
    assert weights[0].tolist() == [1, 1]
    assert average.averages[0].tolist() == [0, 0]


def test_the_average_of_half_precision_weights_is_fp32() -> None:
    weights = [torch.ones(3, dtype=torch.bfloat16)]
    average = WeightAverage(weights, 0.999)
    weights[0].fill_(1.5)
    for update in range(10_000, 13_000):
        average.add(update)
    assert average.averages[0].dtype == torch.float32
    assert average.averages[0].tolist() == pytest.approx([1.5 - 0.5 * 0.999**3000] * 3, rel=1e-4)
    before = [tensor.clone() for tensor in average.averages]
    with average.in_place_of_weights():
        assert weights[0].dtype == torch.bfloat16
    torch.testing.assert_close(average.averages, before, rtol=0, atol=0)
    assert weights[0].tolist() == [1.5] * 3
