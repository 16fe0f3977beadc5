"""The comparison of a training with its record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dstransformer.extras.reproduction.bounds import PER_TOKEN
from dstransformer.extras.reproduction.record import Figures

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Figure:
    """A figure, as recorded and as found again.

    Attributes:
        name: ``test bleu``.
        recorded: The recorded value.
        found: The value here; NaN if this version does not compute it.
        bound: How far the two may differ; infinite if too few sentences were scored for one.
    """

    name: str
    recorded: float
    found: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether it is reproduced. Without a bound only an equal figure is."""
        return self.found == self.recorded or abs(self.found - self.recorded) <= self.bound < math.inf

    @property
    def verdict(self) -> str:
        """``equal``, ``within the bound``, ``OUTSIDE the bound``, ``WITHOUT a bound`` or ``NOT COMPUTED``."""
        if math.isnan(self.found):
            return "NOT COMPUTED"
        if self.found == self.recorded:
            return "equal"
        if self.bound == math.inf:
            return "WITHOUT a bound"
        return "within the bound" if self.holds else "OUTSIDE the bound"


@dataclass(frozen=True)
class Report:
    """The outcome.

    Attributes:
        name: The name of the training.
        differences: What differs and can change the last bits of results, by name: recorded, and here.
        figures: All figures.
        same_weights: Whether the weights have the same bits; None if nothing was trained.
        loss_difference: The largest difference of a logged training loss, and its step; None if nothing was trained or
            the losses were not recorded.
    """

    name: str
    differences: Mapping[str, tuple[str, str]]
    figures: Sequence[Figure]
    same_weights: bool | None
    loss_difference: tuple[float, int] | None

    @property
    def reproduced(self) -> bool:
        """Whether every figure is within its bound and, where nothing differs, the weights have the same bits."""
        bits = bool(self.differences) or self.same_weights in (True, None)
        return bits and all(figure.holds for figure in self.figures)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``; an infinite bound, and a figure that was not computed, are null."""
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "reproduced": self.reproduced,
            "differences": {name: {"recorded": old, "here": new} for name, (old, new) in self.differences.items()},
            "figures": [
                {name: _finite(value) for name, value in asdict(one).items()} | {"verdict": one.verdict}
                for one in self.figures
            ],
            "same_weights": self.same_weights,
            "training_loss": None if self.loss_difference is None else dict(
                zip(("largest_difference", "step"), self.loss_difference, strict=True)
            ),
        }  # fmt: skip


def _finite(value: str | float) -> str | float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def compare(
    recorded: Figures, found: Mapping[str, Mapping[str, float]], bounds: Mapping[str, Mapping[str, float]]
) -> list[Figure]:
    """Every recorded figure beside the one found; without bounds they must be equal."""
    listed = []
    for split, figures in recorded.items():
        own = bounds.get(split, {})
        main = next((bound for name, bound in own.items() if name not in PER_TOKEN), 0.0)
        for name, value in figures.items():
            # BLEU of split compounds has the bound of BLEU.
            listed.append(
                Figure(f"{split} {name}", value, found.get(split, {}).get(name, math.nan), own.get(name, main))
            )
    return listed
