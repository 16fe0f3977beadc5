"""Means over a few runs, with the interval of Student's t distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

#: The 97.5% quantile of Student's t distribution with 1, 2, ... degrees of freedom.
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

#: Of how many values there can be an interval.
MOST_VALUES = len(QUANTILES) + 1


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95% interval; None for one value.

    Raises:
        ValueError: There is no value, or there are more than ten.
    """
    count = len(values)
    if not 1 <= count <= MOST_VALUES:
        raise ValueError(f"intervals are of 1 to {MOST_VALUES} values, not {count}")
    if count == 1:
        return values[0], None
    return statistics.mean(values), QUANTILES[count - 2] * statistics.stdev(values) / math.sqrt(count)


def format_mean(values: Sequence[float], spec: str) -> str:
    """``-0.120 ± 0.031``: mean and half the width of its 95% interval. One value stands alone, none is empty."""
    if not values:
        return ""
    mean, half = mean_interval(values)
    return f"{mean:{spec}}" if half is None else f"{mean:{spec}} ± {half:{spec.removeprefix('+')}}"
