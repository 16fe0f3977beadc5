"""Checkpoints are portable: each of 36 layouts (ranks x ZeRO stage x precision) goes on from another."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.models.numerics import LAYOUT_TOLERANCE
from support.tiers import combinations, mark_others
from support.training.cases import Layout, assert_same_weights, train_layouts
from support.training.runs import losses, trace

from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

RANKS, STAGES, PRECISIONS = (1, 2, 4), (0, 1, 2, 3), ("fp32", "bf16", "fp16")
SAVED_AT, UPDATES = 3, 5

COMMON = ["model.num_layers=1", f"training.max_updates={UPDATES}", "model.dropout=0.1", "optimizer.ema_decay=0.5"]
COMMON += [f"checkpoint.every_updates={SAVED_AT}", "optimizer.clip_norm=0.5"]


ALL = [Layout(*values) for values in itertools.product(RANKS, STAGES, PRECISIONS)]


def source_of(target: Layout, *, same_precision: bool) -> Layout:
    """Another number of ranks and another stage; the same precision or another."""
    ranks = RANKS[(RANKS.index(target.ranks) + 1 + target.stage % 2) % 3]
    step = 0 if same_precision else 1
    return Layout(ranks, (target.stage + 1) % 4, PRECISIONS[(PRECISIONS.index(target.precision) + step) % 3])


PAIRS = [(target, source_of(target, same_precision=True)) for target in ALL]
PAIRS += [(target, source_of(target, same_precision=False)) for target in ALL if target.ranks == 2]
UNCHANGED = [layout for layout in ALL if layout.ranks == 2]

#: The layouts that `make test` resumes. The rest is extended.
FIRST_TARGETS = {Layout(1, 0, "fp32"), Layout(2, 1, "bf16"), Layout(4, 2, "fp16"), Layout(2, 3, "fp32")}
FIRST_PAIRS = {(target, source) for target, source in PAIRS if target in FIRST_TARGETS}
FIRST_LAYOUTS = {layout for pair in FIRST_PAIRS for layout in pair}
FIRST_UNCHANGED = FIRST_TARGETS & set(UNCHANGED)


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory, *, extended: bool) -> Path:
    """A run in each layout, and each layout going on from the middle of two others."""
    out = tmp_path_factory.mktemp("portable")
    pairs = [pair for pair in PAIRS if extended or pair in FIRST_PAIRS]
    pairs += [(layout, layout) for layout in UNCHANGED if extended or layout in FIRST_UNCHANGED]
    layouts = [layout for layout in ALL if extended or layout in FIRST_LAYOUTS]
    train_layouts(out, toy_corpus, COMMON, layouts, pairs, saved_at=SAVED_AT)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("layout", combinations(UNCHANGED, first_tier={(one,) for one in FIRST_UNCHANGED}), ids=str)
def test_the_same_layout_goes_on_bit_for_bit(runs: Path, layout: Layout) -> None:
    whole, resumed = runs / str(layout), runs / f"{layout}-from-{layout}"
    for key in ("loss", "grad_norm", "lr"):
        assert trace(resumed, key) == trace(whole, key)[SAVED_AT:]
    assert_same_weights(resumed, whole)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "source"), mark_others(PAIRS, FIRST_PAIRS), ids=str)
def test_any_layout_goes_on_from_any_other(runs: Path, target: Layout, source: Layout) -> None:
    """Within a precision only the order of sums in fp32 differs; another precision rounds otherwise from here on."""
    whole, resumed = runs / str(target), runs / f"{target}-from-{source}"
    tolerance = LAYOUT_TOLERANCE[target.precision] if target.precision == source.precision else 2e-2
    assert losses(resumed) == pytest.approx(losses(whole)[SAVED_AT:], rel=tolerance)
    assert trace(resumed, "lr") == trace(whole, "lr")[SAVED_AT:]
    if target.precision == source.precision:
        assert trace(resumed, "grad_norm") == pytest.approx(trace(whole, "grad_norm")[SAVED_AT:], rel=100 * tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("layout", combinations(ALL, first_tier={(one,) for one in FIRST_LAYOUTS}), ids=str)
def test_a_checkpoint_is_whole_and_holds_no_pickle(runs: Path, layout: Layout) -> None:
    checkpoint = read_checkpoint(runs / str(layout) / "checkpoints" / f"step-{SAVED_AT:08}")
    verify_checkpoint(checkpoint)
    suffixes = {path.suffix for path in checkpoint.path.rglob("*") if path.is_file()}
    assert suffixes == {".safetensors", ".json", ".yaml", ".model"}
    assert (checkpoint.state.world_size, checkpoint.state.zero_stage, checkpoint.state.precision) == layout
    assert len(list(checkpoint.shards.iterdir())) == layout.ranks, "every rank writes its share"
