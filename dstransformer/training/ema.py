"""An exponential moving average of the weights (Polyak and Juditsky, 1992, with a window that forgets)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def ema_weight(decay: float, updates: int) -> float:
    """The share of the average that stays after update ``updates``, from 1: ``min(decay, (1 + n) / (10 + n))``.

    The average starts at the initial weights, which the smaller share of the first updates makes it forget.
    """
    return min(decay, (1 + updates) / (10 + updates))


class WeightAverage:
    """The moving average of the fp32 weights that this rank updates: all of them, or its partition in ZeRO.

    Args:
        masters: The weights that the optimizer updates in place.
        decay: See :func:`ema_weight`.
    """

    def __init__(self, masters: Sequence[Tensor], decay: float) -> None:
        self._masters = [master.detach() for master in masters]
        self._averages = [master.clone() for master in self._masters]
        self._decay = decay

    @torch.no_grad()
    def add(self, updates: int) -> None:
        """Include the weights after an update that was applied.

        Args:
            updates: Number of updates applied so far.
        """
        torch._foreach_lerp_(self._averages, self._masters, 1.0 - ema_weight(self._decay, updates))

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Put the average in the place of the weights for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for master, average in zip(self._masters, self._averages, strict=True):
            held = master.clone()
            master.copy_(average)
            average.copy_(held)

    def state(self) -> list[Tensor]:
        """The average, in the layout of the masters; copies in CPU memory."""
        return [average.to("cpu", copy=True) for average in self._averages]

    @torch.no_grad()
    def load(self, state: Sequence[Tensor]) -> None:
        """Go on from a state of the same layout."""
        for average, stored in zip(self._averages, state, strict=True):
            average.copy_(stored)
