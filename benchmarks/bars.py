"""A figure beside the bar that it is held to, or the limit that the machine sets it, in one line."""

from __future__ import annotations


def at_most(what: str, figure: float, bar: float, form: str = ".2f", unit: str = "") -> None:
    """Print a figure that is to stay below a bar, also as a share of it."""
    _show(what, figure, bar, form, unit, "at most", figure <= bar)


def at_least(what: str, figure: float, bar: float, form: str = ".2f", unit: str = "") -> None:
    """Print a figure that is to reach a bar, also as a share of it."""
    _show(what, figure, bar, form, unit, "at least", figure >= bar)


def of_limit(what: str, figure: float, limit: float, of: str, unit: str = " GB/s") -> None:
    """Print a figure as a share of the most that the machine can do."""
    print(f"{what}: {figure:.3g}{unit}, {figure / limit:.1%} of {of} ({limit:.3g}{unit})")


def of_floor(what: str, figure: float, floor: float, of: str, unit: str = " s") -> None:
    """Print a figure beside the least that it could be."""
    print(f"{what}: {figure:.3g}{unit}, of which {floor:.3g}{unit} ({floor / figure:.1%}) are {of}")


def _show(what: str, figure: float, bar: float, form: str, unit: str, kind: str, met: bool) -> None:
    verdict = "met" if met else "MISSED"
    print(f"{what}: {figure:{form}}{unit}; bar {kind} {bar:{form}}{unit}, {verdict} ({figure / bar:.0%} of it)")
