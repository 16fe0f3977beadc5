"""An exponential moving average of the weights (Polyak and Juditsky, 1992, with exponentially decaying shares)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def ema_weight(decay: float, updates: int) -> float:
    """The share of the average that stays after update ``updates``, from 1: ``min(decay, (1 + n) / (10 + n))``.

    The average starts at the initial weights. The smaller shares of the first updates let it forget them.
    """
    return min(decay, (1 + updates) / (10 + updates))


class WeightAverage:
    """The moving average, in fp32, of the weights that this rank updates: all of them, or its partition in ZeRO.

    Attributes:
        averages: The average of each of them.

    Args:
        masters: The weights that the optimizer updates in place.
        decay: See :func:`ema_weight`.
    """

    def __init__(self, masters: Sequence[Tensor], decay: float) -> None:
        self._masters = [master.detach() for master in masters]
        self.averages = [master.float().clone() for master in self._masters]
        self._decay = decay

    @torch.no_grad()
    def add(self, updates: int) -> None:
        """Include the weights after an update that was applied.

        Args:
            updates: Number of updates applied so far.
        """
        weights = [master.float() for master in self._masters]
        torch._foreach_lerp_(self.averages, weights, 1.0 - ema_weight(self._decay, updates))

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Put the average in the place of the weights for a while. CPU memory holds the weights meanwhile."""
        with torch.no_grad():
            held = [master.to("cpu", copy=True) for master in self._masters]
            torch._foreach_copy_(self._masters, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                for master, weights in zip(self._masters, held, strict=True):
                    master.copy_(weights)
