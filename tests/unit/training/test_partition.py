"""The moving average of the weights."""

from __future__ import annotations

import pytest
import torch

from dstransformer.training.partition import WeightAverage, ema_weight


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
