"""The learning rate: the paper's, and curves that end with the training."""

from __future__ import annotations

import math

import pytest

from dstransformer.config import load_config
from dstransformer.errors import ConfigError
from dstransformer.training.schedule import describe_jump, learning_rate

PEAK = ["schedule.warmup_steps=10", "schedule.peak=0.01"]


def test_the_learning_rate_of_base() -> None:
    schedule = load_config("base").schedule
    peak = learning_rate(4000, 512, schedule, 100_000)
    assert peak == pytest.approx(512**-0.5 * 4000**-0.5)
    assert peak == pytest.approx(6.9877e-4, rel=1e-4)
    assert learning_rate(1, 512, schedule, 100_000) == pytest.approx(peak / 4000)
    assert learning_rate(2000, 512, schedule, 100_000) == pytest.approx(peak / 2)
    assert learning_rate(16000, 512, schedule, 100_000) == pytest.approx(peak / 2)


def test_a_peak_sets_the_learning_rate_at_any_width() -> None:
    schedule = load_config("base", ["schedule.warmup_steps=10", "schedule.peak=0.001"]).schedule
    rates = [[learning_rate(step, width, schedule, 100) for step in (1, 5, 10, 40)] for width in (64, 1024)]
    assert rates[0] == rates[1] == pytest.approx([1e-4, 5e-4, 1e-3, 5e-4])
    with pytest.raises(ConfigError, match=r"scale 2.0 and peak 0.001"):
        load_config("base", ["schedule.scale=2.0", "schedule.peak=0.001"])


def test_the_learning_rate_rises_in_the_warmup_and_falls_after() -> None:
    schedule = load_config("base", ["schedule.warmup_steps=10", "schedule.scale=3.0"]).schedule
    rates = [learning_rate(step, 64, schedule, 30) for step in range(1, 31)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert max(rates) == pytest.approx(3.0 * 64**-0.5 * 10**-0.5)


def rates(kind: str, *more: str, updates: int = 110) -> list[float]:
    config = load_config("base", [*PEAK, f"schedule.kind={kind}", f"training.max_updates={updates}", *more])
    return [learning_rate(step, 512, config.schedule, updates) for step in range(1, updates + 2)]


@pytest.mark.parametrize("kind", ["linear", "cosine", "warmup_stable_decay"])
def test_every_kind_has_the_same_warmup_and_reaches_its_end(kind: str) -> None:
    found = rates(kind, "schedule.final=0.1")
    assert found[:10] == rates("inverse_sqrt")[:10]
    assert found[9] == max(found) == pytest.approx(0.01)
    assert found[9:] == sorted(found[9:], reverse=True)
    assert found[-1] == pytest.approx(0.001)
    assert found[-2] > found[-1]


def test_the_curves_are_those_of_their_formulas() -> None:
    linear, cosine, stable = (rates(kind) for kind in ("linear", "cosine", "warmup_stable_decay"))
    for step in (11, 35, 60, 110):
        passed = (step - 10) / 101
        assert linear[step - 1] == pytest.approx(0.01 * (1 - passed))
        assert cosine[step - 1] == pytest.approx(0.005 * (1 + math.cos(math.pi * passed)))
    assert set(stable[9:88]) == {stable[9]}  # a fifth of 110 updates falls
    assert stable[99] == pytest.approx(0.01 * (1 - 12 / 23))
    assert rates("warmup_stable_decay", "schedule.decay=1.0") == linear


def test_a_longer_run_goes_on_without_a_jump_where_the_kind_allows_it() -> None:
    def jump(step: int, kind: str, updates: int = 200, *more: str) -> str | None:
        before = load_config("base", [*PEAK, f"schedule.kind={kind}", "training.max_updates=100"])
        now = load_config("base", [*PEAK, f"schedule.kind={kind}", f"training.max_updates={updates}", *more])
        return describe_jump(step, before, now)

    assert jump(100, "inverse_sqrt") is None
    assert jump(79, "warmup_stable_decay") is None
    assert jump(50, "cosine", 100) is None
    assert "extend such a run from a checkpoint before its decay" in str(jump(90, "warmup_stable_decay"))
    said = "the learning rate of update 51 jumps from 0.00549 to 0.00785"
    assert jump(50, "linear") == f"{said}: linear ends with training.max_updates, 100 before"
    assert "other values of the schedule" in str(jump(50, "inverse_sqrt", 100, "schedule.peak=0.02"))


def test_bounds_of_the_schedule() -> None:
    for override in ("schedule.kind=step", "schedule.final=1.0", "schedule.decay=0", "schedule.final=-0.1"):
        with pytest.raises(ConfigError, match=override.split("=")[0].replace(".", r"\.")):
            load_config("base", [override])
