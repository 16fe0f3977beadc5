from __future__ import annotations

import pytest

from dstransformer.config import load_config
from dstransformer.errors import ConfigError
from dstransformer.training.optimizer import learning_rate


def test_the_learning_rate_of_base() -> None:
    schedule = load_config("base").schedule
    peak = learning_rate(4000, 512, schedule)
    assert peak == pytest.approx(512**-0.5 * 4000**-0.5)
    assert peak == pytest.approx(6.9877e-4, rel=1e-4)
    assert learning_rate(1, 512, schedule) == pytest.approx(peak / 4000)
    assert learning_rate(2000, 512, schedule) == pytest.approx(peak / 2)
    assert learning_rate(16000, 512, schedule) == pytest.approx(peak / 2)


def test_a_peak_sets_the_learning_rate_at_any_width() -> None:
    schedule = load_config("base", ["schedule.warmup_steps=10", "schedule.peak=0.001"]).schedule
    rates = [[learning_rate(step, width, schedule) for step in (1, 5, 10, 40)] for width in (64, 1024)]
    assert rates[0] == rates[1] == pytest.approx([1e-4, 5e-4, 1e-3, 5e-4])
    with pytest.raises(ConfigError, match=r"scale 2.0 and peak 0.001 both set the height of the learning rate"):
        load_config("base", ["schedule.scale=2.0", "schedule.peak=0.001"])


def test_the_learning_rate_rises_in_the_warmup_and_falls_after() -> None:
    schedule = load_config("base", ["schedule.warmup_steps=10", "schedule.scale=3.0"]).schedule
    rates = [learning_rate(step, 64, schedule) for step in range(1, 31)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert max(rates) == pytest.approx(3.0 * 64**-0.5 * 10**-0.5)
