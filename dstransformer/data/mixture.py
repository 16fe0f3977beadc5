"""Which pairs of a corpus of several sources an epoch holds, and how often: a pure function of seed and epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from dstransformer.config.schema import MixtureStage
from dstransformer.data import PartInfo
from dstransformer.errors import ConfigError, counted, shown

Rows = npt.NDArray[np.int32]

#: Separates the random numbers of the mixture from those that shuffle an epoch.
_STREAM = 1


@dataclass(frozen=True)
class Mixture:
    """The pairs of every epoch.

    A source of weight ``w`` with ``n`` pairs contributes ``w * n`` pairs to an epoch. Rounding errors do not add up
    over epochs. Its pairs are taken in rounds, each in its own random order: over any number of epochs every
    pair is used as often as every other, or once more.

    Attributes:
        sizes: Pairs of each source, ``(sources,)``. They follow those of the source before it.
        starts: The first epoch of each stage, ``(stages,)``.
        weights: How often each stage uses the pairs of each source in an epoch, ``(stages, sources)``.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]

    def rows(self, seed: int, epoch: int) -> Rows:
        """The pairs of an epoch, source by source, ``(pairs,)``."""
        stage = int(np.searchsorted(self.starts, epoch, side="right")) - 1
        begins = (0, *accumulate(self.sizes))
        chosen = [
            begins[source] + self._take(source, weight, epoch - self.starts[stage], (seed, stage))
            for source, weight in enumerate(self.weights[stage])
        ]
        return np.concatenate(chosen, dtype=np.int32)

    def pairs(self) -> tuple[float, ...]:
        """Approximate pairs of an epoch in each stage, ``(stages,)``. A repeated pair counts each time."""
        return tuple(
            sum(weight * size for weight, size in zip(weights, self.sizes, strict=True)) for weights in self.weights
        )

    def _take(self, source: int, weight: float, epoch: int, key: tuple[int, int]) -> Rows:
        """The pairs of a source in an epoch of its stage, counted from the source's first."""
        size = self.sizes[source]
        if weight == 1:
            return np.arange(size, dtype=np.int32)
        first, end = (int(weight * size * number) for number in (epoch, epoch + 1))
        taken = []
        while first < end:
            number, place = divmod(first, size)
            order = np.arange(size, dtype=np.int32)
            np.random.default_rng((*key, _STREAM, source, number)).shuffle(order)
            taken.append(order[place : place + end - first].copy())
            first += len(taken[-1])
        return np.concatenate([np.empty(0, dtype=np.int32), *taken])


def build_mixture(sources: Sequence[PartInfo], stages: Sequence[MixtureStage]) -> Mixture | None:
    """Build the mixture of a corpus.

    Args:
        sources: The sources of the corpus; empty if its format does not know them.
        stages: ``training.mixture``; empty for the weights of the corpus's recipe.

    Returns:
        None if every epoch holds each pair once.

    Raises:
        ConfigError: A stage names a source that the corpus does not have, or holds no pair.
    """
    if not stages:
        weights = tuple(source.weight for source in sources)
        if all(weight == 1 for weight in weights):
            return None
        if not any(source.weight * source.pairs >= 1 for source in sources):
            raise ConfigError("the weights of the corpus's sources leave no pair in an epoch: set training.mixture")
        return Mixture(tuple(source.pairs for source in sources), (0,), (weights,))
    sizes = {source.name: source.pairs for source in sources}
    rows, starts = [], [0]
    for number, stage in enumerate(stages):
        for name in stage.weights or ():
            if name not in sizes:
                raise ConfigError(
                    f"training.mixture names the source {shown(name)}, which the corpus does not have; it has "
                    f"{', '.join(sizes) or 'none that is named: build it again with this version of dst-prep'}"
                )
        weights = _stage_weights(stage, sizes)
        if not any(weight * size >= 1 for weight, size in zip(weights, sizes.values(), strict=True)):
            raise ConfigError(f"stage {number + 1} of training.mixture leaves no pair in an epoch: raise its weights")
        rows.append(weights)
        starts.append(starts[-1] + (stage.epochs or 0))
    return Mixture(tuple(sizes.values()), tuple(starts[:-1]), tuple(rows))


def temperature_weights(sizes: Sequence[int], temperature: float) -> tuple[float, ...]:
    """The weights with which the share of a source of ``n`` pairs in an epoch is proportional to n^(1/temperature).

    The largest is used once in an epoch (Arivazhagan et al., 2019, *Massively Multilingual Neural Machine Translation
    in the Wild*; there 5).
    """
    largest = max(sizes, default=0)
    return tuple((size / largest) ** (1 / temperature - 1) if size else 0.0 for size in sizes)


def _stage_weights(stage: MixtureStage, sizes: Mapping[str, int]) -> tuple[float, ...]:
    if stage.weights is not None:
        return tuple(stage.weights.get(name, 0.0) for name in sizes)
    return temperature_weights(list(sizes.values()), stage.temperature or 1.0)


def describe_mixture(sources: Sequence[PartInfo], stages: Sequence[MixtureStage]) -> str:
    """The weights in a line: ``3 epochs of europarl 1, then europarl 1, news 2``; empty if the corpus has one source.

    Arguments are those of :func:`build_mixture`.
    """
    if not stages:
        return _describe_weights({source.name: source.weight for source in sources}) if len(sources) > 1 else ""
    described = []
    sizes = {source.name: source.pairs for source in sources}
    for stage in stages:
        epochs = "" if stage.epochs is None else f"{counted(stage.epochs, 'epoch')} of "
        weights = _describe_weights(dict(zip(sizes, _stage_weights(stage, sizes), strict=True)))
        if stage.weights is None:
            weights = f"temperature {stage.temperature:g} ({weights})"
        described.append(epochs + weights)
    return ", then ".join(described)


def _describe_weights(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items() if weight)
