from __future__ import annotations

import math

import pytest
import torch

from dstransformer.decoding.beam import best_reachable_score, length_penalty


@pytest.mark.parametrize(("length", "alpha", "expected"), [
    (1, 0.6, 1.0),
    (1, 1.0, 1.0),
    (7, 1.0, 2.0),
    (19, 0.5, 2.0),
    (30, 0.0, 1.0),
    (13, 0.6, math.exp(0.6 * math.log(3.0))),
])  # fmt: skip
def test_length_penalty_is_equation_14(length: int, alpha: float, expected: float) -> None:
    assert length_penalty(length, alpha) == pytest.approx(expected, rel=1e-12)


def test_without_an_offset_it_is_a_power_of_the_length() -> None:
    assert length_penalty(9, 0.5, 0.0) == pytest.approx(3.0, rel=1e-12)
    assert length_penalty(1, 0.5, 0.0) == 1.0


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 2.0])
def test_no_continuation_scores_above_the_bound(alpha: float) -> None:
    limit = 12
    now = -3.5
    bound = best_reachable_score(torch.tensor(now), torch.tensor(length_penalty(limit, alpha))).item()
    for length in range(1, limit + 1):
        for lost in (0.0, 0.01, 1.0):
            assert (now - lost) / length_penalty(length, alpha) <= bound + 1e-6
    # The bound is attained, by a continuation that costs nothing and ends at the limit.
    assert bound == pytest.approx(now / length_penalty(limit, alpha), rel=1e-6)
