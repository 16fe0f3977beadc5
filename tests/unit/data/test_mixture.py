"""Which pairs of several sources an epoch holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstransformer.config import load_config
from dstransformer.config.schema import MixtureStage
from dstransformer.data import PartInfo
from dstransformer.data.mixture import Mixture, build_mixture, describe_mixture, temperature_weights
from dstransformer.data.plan import Budget, plan_epoch
from dstransformer.errors import ConfigError


def part(name: str, pairs: int, weight: float = 1.0) -> PartInfo:
    return PartInfo(name=name, src_lang="en", tgt_lang="de", weight=weight, tag=None, read=pairs, pairs=pairs)


PARTS = [part("a", 100), part("b", 10)]


def counts(mixture: Mixture, epochs: range, seed: int = 1) -> list[np.ndarray]:
    """How often each pair of each source is used in these epochs."""
    rows = np.concatenate([mixture.rows(seed, epoch) for epoch in epochs])
    return np.split(np.bincount(rows, minlength=sum(mixture.sizes)), np.cumsum(mixture.sizes)[:-1])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(0, 5)), min_size=1, max_size=4),
    st.integers(0, 9),
    st.integers(1, 9),
)
def test_every_pair_is_used_as_often_as_its_weight_says(
    sources: list[tuple[int, float]], seed: int, epochs: int
) -> None:
    sizes, weights = zip(*sources, strict=True)
    mixture = Mixture(sizes, (0,), (weights,))
    for used, size, weight in zip(counts(mixture, range(epochs), seed), sizes, weights, strict=True):
        assert used.sum() == int(weight * size * epochs)
        assert not size or used.max() - used.min() <= 1


def test_an_epoch_is_a_function_of_seed_and_number() -> None:
    mixture = Mixture((50, 20), (0,), ((0.3, 2.5),))
    assert np.array_equal(mixture.rows(1, 4), mixture.rows(1, 4))
    assert not np.array_equal(mixture.rows(1, 4), mixture.rows(2, 4))
    assert len(np.unique(np.concatenate([mixture.rows(1, epoch)[:15] for epoch in range(3)]))) == 45, "a round"


def test_weights_of_one_are_the_plan_of_one_source() -> None:
    lengths = np.arange(1, 111, dtype=np.int32)
    assert build_mixture(PARTS, []) is None
    assert build_mixture([], []) is None
    mixture = build_mixture(PARTS, [MixtureStage(weights={"a": 1.0, "b": 1.0})])
    assert mixture is not None
    plain, mixed = (
        plan_epoch(lengths, lengths, 1, 3, Budget(500, 500, 1), rows) for rows in (None, mixture.rows(1, 3))
    )
    assert np.array_equal(plain.order, mixed.order)
    assert np.array_equal(plain.bounds, mixed.bounds)


def test_the_recipes_weights_hold_without_stages() -> None:
    mixture = build_mixture([part("a", 100, 0.5), part("b", 10, 3.0)], [])
    assert mixture is not None
    assert [used.sum() for used in counts(mixture, range(2))] == [100, 60]


def test_stages_follow_each_other() -> None:
    stages = [MixtureStage(epochs=3, weights={"a": 1.0}), MixtureStage(weights={"a": 1.0, "b": 2.0})]
    mixture = build_mixture(PARTS, stages)
    assert mixture is not None
    assert [[int(used.sum()) for used in counts(mixture, range(n, n + 1))] for n in (0, 2, 3, 9)] == [
        [100, 0], [100, 0], [100, 20], [100, 20],
    ]  # fmt: skip


@given(st.lists(st.integers(1, 10**8), min_size=1, max_size=9), st.floats(1, 100))
def test_shares_by_temperature_are_those_of_the_formula(sizes: list[int], temperature: float) -> None:
    weights = temperature_weights(sizes, temperature)
    pairs = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    wanted = [size ** (1 / temperature) for size in sizes]
    assert [one / sum(pairs) for one in pairs] == pytest.approx([one / sum(wanted) for one in wanted])
    assert weights[sizes.index(max(sizes))] == 1


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 10 / 110), (5.0, 10**0.2 / (10**0.2 + 100**0.2))])
def test_a_temperature_raises_the_share_of_small_sources(temperature: float, share: float) -> None:
    mixture = build_mixture(PARTS, [MixtureStage(temperature=temperature)])
    assert mixture is not None
    large, small = (used.sum() for used in counts(mixture, range(20)))
    assert large == 2000
    assert small / (small + large) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[{weights: {c: 1}}]", "names the source 'c', which the corpus does not have; it has a, b"),
        ("[{weights: {a: 0.001}}]", "stage 1 of training.mixture leaves no pair in an epoch"),
        ("[{epochs: 2, weights: {a: 1}}]", "the last stage lasts to the end"),
        ("[{weights: {a: 1}}, {weights: {b: 1}}]", "stage 1 is not the last and has no epochs"),
        ("[{weights: {a: 1}, temperature: 2}]", "either weights or a temperature"),
        ("[{weights: {a: -1}}]", "must be 0.0 or more"),
    ],
)
def test_mixtures_that_do_not_fit_are_refused(stages: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_mixture(PARTS, load_config("toy", [f"training.mixture={stages}"]).training.mixture)


def test_a_mixture_in_a_line() -> None:
    stages = [MixtureStage(epochs=3, weights={"a": 1, "b": 0}), MixtureStage(epochs=1, temperature=5)]
    last = MixtureStage(weights={"a": 0.5, "b": 2})
    assert describe_mixture(PARTS, [*stages, last]) == (
        "3 epochs of a 1, then 1 epoch of temperature 5 (a 1, b 6.30957), then a 0.5, b 2"
    )
    assert describe_mixture(PARTS, []) == "a 1, b 1"
    assert describe_mixture(PARTS[:1], []) == ""
