"""The two tiers of tests: `make test` proves every promise once, `make test-all` adds the tests marked ``extended``."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import pytest


def combinations(*axes: Sequence[Any], first_tier: Collection[tuple[Any, ...]]) -> list[Any]:
    """The parameters of every combination of the axes. All but those of the first tier are marked ``extended``."""
    return mark_others(list(itertools.product(*axes)), first_tier)


def mark_others(cases: Sequence[tuple[Any, ...]], first_tier: Collection[tuple[Any, ...]]) -> list[Any]:
    """These parameters of a test. All but those of the first tier are marked ``extended``."""
    assert set(first_tier) <= set(cases), "the first tier names a case that does not exist"
    return [pytest.param(*case, marks=() if case in first_tier else pytest.mark.extended) for case in cases]
