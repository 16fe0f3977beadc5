"""The bounds of figures that a training done again must keep."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dstransformer.extras.reproduction.bounds import _half_width, rounding_bound
from dstransformer.extras.reproduction.record import differences
from dstransformer.extras.reproduction.reproduce import Figure, Report


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    groups = np.random.default_rng(1).normal(size=20)
    without = [(groups.sum() - value) / 19 for value in groups]
    standard_error = groups.std(ddof=1) / math.sqrt(20)
    assert _half_width(without) == pytest.approx(2.093 * math.sqrt(2) * standard_error)


def test_19_of_20_pairs_of_equal_models_differ_by_less() -> None:
    """Of sentences drawn for each."""
    draws = np.random.default_rng(2).exponential(size=(2000, 2, 20, 10)).mean(axis=3)
    inside = 0
    for one, other in draws:
        without = [(one.sum() - value) / 19 for value in one]
        inside += abs(one.mean() - other.mean()) <= _half_width(without)
    assert 0.92 < inside / len(draws) < 0.98


def test_rounding_changes_few_outputs() -> None:
    assert rounding_bound("bleu", 30.0, 1000, ["fp32", "fp32"]) == pytest.approx(0.3)
    assert rounding_bound("bleu", 30.0, 10, ["fp32", "fp32"]) == pytest.approx(10.0)
    assert rounding_bound("complete_match", 0.0, 200, ["fp32", "fp32"]) == pytest.approx(0.5)
    assert rounding_bound("loss", 2.0, 1000, ["fp32", "fp32"]) == pytest.approx(2e-4)
    assert rounding_bound("perplexity", 100.0, 1000, ["fp32", "fp32"]) == pytest.approx(0.01 * math.log(100.0))
    assert rounding_bound("loss", 2.0, 1000, ["bf16", "fp32"]) == pytest.approx(2 * 2 / 256)


def test_differences_name_what_can_change_bits() -> None:
    here = {"dstransformer": "0.2", "versions": {"torch": "2"}, "hardware": {"device": "a", "threads": "1"}}
    assert differences(here, dict(here)) == {}
    recorded = here | {"versions": {"torch": "1"}, "world_size": 4}
    assert differences(recorded, here | {"git_revision": "abc"}) == {
        "torch": ("1", "2"),
        "processes": ("4", "none"),
        "revision": ("not recorded", "abc"),
    }


def test_without_a_bound_only_an_equal_figure_is_reproduced() -> None:
    for found, verdict in ((30.0, "equal"), (30.1, "WITHOUT a bound")):
        figure = Figure("test bleu", 30.0, found, math.inf)
        assert figure.verdict == verdict
        assert Report("run", {"torch": ("1", "2")}, [figure], False, None).reproduced == (found == 30.0)


@pytest.mark.parametrize(
    ("differs", "found", "same_weights", "reproduced"),
    [
        ({}, 30.0, True, True),
        ({}, 30.0, False, False),
        ({}, 30.01, True, False),
        ({"torch": ("1", "2")}, 30.0, False, True),
        ({"torch": ("1", "2")}, 30.4, False, True),
        ({"torch": ("1", "2")}, 30.6, False, False),
        ({"torch": ("1", "2")}, math.nan, False, False),
    ],
)
def test_what_counts_as_reproduced(
    differs: dict[str, tuple[str, str]], found: float, same_weights: bool, reproduced: bool
) -> None:
    figure = Figure("test bleu", 30.0, found, 0.5 if differs else 0.0)
    assert Report("run", differs, [figure], same_weights, None).reproduced == reproduced
