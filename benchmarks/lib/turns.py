"""Systems take turns, so that a slow hour of the machine slows all of them; ratios are taken within a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def take_turns(
    systems: Mapping[str, Callable[[], T]],
    rounds: int,
    *,
    warm_up: int = 0,
    before_round: Callable[[], object] | None = None,
) -> dict[str, list[T]]:
    """Call every system once in each round.

    Args:
        systems: What to call, by name.
        rounds: Rounds that count.
        warm_up: Rounds before them, whose results are dropped.
        before_round: Called at the start of each round.

    Returns:
        The results of each system, one per round.
    """
    results: dict[str, list[T]] = {name: [] for name in systems}
    for number in range(warm_up + rounds):
        if before_round is not None:
            before_round()
        for name, measure in systems.items():
            result = measure()
            if number >= warm_up:
                results[name].append(result)
    return results


def ratios(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    """The ratio within each round."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def median_ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """The median of the ratios within the rounds."""
    return statistics.median(ratios(numerators, denominators))


def format_range(values: Sequence[float], spec: str = ".2f") -> str:
    """Median, smallest and largest value: ``1.01 (0.95 to 1.12)``."""
    return f"{statistics.median(values):{spec}} ({min(values):{spec}} to {max(values):{spec}})"
