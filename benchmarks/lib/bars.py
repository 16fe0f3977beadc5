"""Prints a measurement next to its target, or next to a limit of the machine, on one line."""

from __future__ import annotations


def print_at_most(what: str, value: float, target: float, spec: str = ".2f", unit: str = "") -> None:
    """Print a measurement that must not exceed a target, and their ratio."""
    _show(what, value, target, spec, unit, "at most", value <= target)


def print_at_least(what: str, value: float, target: float, spec: str = ".2f", unit: str = "") -> None:
    """Print a measurement that must reach a target, and their ratio."""
    _show(what, value, target, spec, unit, "at least", value >= target)


def print_share(what: str, value: float, limit: float, of: str, unit: str = " GB/s") -> None:
    """Print a measurement and its share of a limit of the machine."""
    print(f"{what}: {value:.3g}{unit}, {value / limit:.1%} of {of} ({limit:.3g}{unit})")


def _show(what: str, value: float, target: float, spec: str, unit: str, kind: str, reached: bool) -> None:
    verdict = "met" if reached else "MISSED"
    print(f"{what}: {value:{spec}}{unit}; target {kind} {target:{spec}}{unit}, {verdict} ({value / target:.0%} of it)")
