"""Muon with real ranks: the same updates in every layout, resuming in any other, and infinite gradients."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from safetensors import safe_open
from support.models.numerics import LAYOUT_TOLERANCE
from support.tiers import combinations, mark_others
from support.training.cases import (
    Layout,
    assert_same_weights,
    final_weights,
    outcome,
    train_layouts,
    write_scattered,
)
from support.training.runs import losses, trace

from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

pytestmark = pytest.mark.slow

RANKS, STAGES, PRECISIONS = (1, 2), (0, 1, 2, 3), ("fp32", "bf16", "fp16")
SAVED_AT, UPDATES, INFINITE = 3, 6, 5

COMMON = [
    "optimizer.name=muon", "optimizer.muon_rate=0.7", "optimizer.weight_decay=0.01", "optimizer.clip_norm=0.5",
    "optimizer.ema_decay=0.5", "schedule.warmup_steps=3", "model.dropout=0.1", "model.encoder_layers=2",
    "model.decoder_layers=1", f"training.max_updates={UPDATES}", f"checkpoint.every_updates={SAVED_AT}",
]  # fmt: skip


ALL = [Layout(*values) for values in itertools.product(RANKS, STAGES, PRECISIONS)]

#: Each from a layout with another number of ranks and another stage, and from itself.
PAIRS = [(one, Layout(3 - one.ranks, (one.stage + 1) % 4, one.precision)) for one in ALL]
PAIRS += [(one, one) for one in ALL if one.ranks == 2]

#: The layouts that `make test` trains: each stage on two ranks, each precision at two stages. The rest is extended.
FIRST = [Layout(2, 0, "fp32"), Layout(2, 1, "bf16"), Layout(2, 2, "fp16"), Layout(2, 3, "fp32")]
FIRST += [Layout(1, 2, "bf16"), Layout(1, 3, "fp16"), Layout(1, 0, "fp32")]
FIRST_PAIRS = [pair for pair in PAIRS if pair[0].ranks == 2 and set(pair) <= set(FIRST)]


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory, *, extended: bool) -> Path:
    """A run in each layout, one with an infinite gradient if it has two ranks, and runs that go on from others."""
    out = tmp_path_factory.mktemp("muon")
    layouts, pairs = (ALL, PAIRS) if extended else (FIRST, FIRST_PAIRS)
    # At stage 3 no weight is whole on a rank, and the optimizer takes few at a time.
    stage_3 = write_scattered(out, sub_group_size=5000)
    train_layouts(out, toy_corpus, COMMON, layouts, pairs, saved_at=SAVED_AT, infinite=INFINITE, stage_3=stage_3)
    return out


@pytest.mark.parametrize("layout", combinations(ALL, first_tier={(one,) for one in FIRST}), ids=str)
def test_every_layout_computes_the_same_updates(runs: Path, layout: Layout) -> None:
    found, expected = runs / str(layout), runs / str(Layout(1, 0, "fp32"))
    tolerance = LAYOUT_TOLERANCE["fp32"] if layout.precision == "fp32" else 2e-2
    assert losses(found) == pytest.approx(losses(expected), rel=tolerance)
    assert trace(found, "lr") == trace(expected, "lr")
    if layout.precision != "fp32":  # rounding turns the sign of small gradients, and so the first updates of Adam
        return
    reference = final_weights(expected)
    for name, weight in final_weights(found).items():
        wanted = reference[name]
        assert float((weight - wanted).norm()) <= 1e-4 * float(wanted.norm()), name


@pytest.mark.parametrize(("target", "source"), mark_others(PAIRS, FIRST_PAIRS), ids=str)
def test_any_layout_goes_on_from_any_other(runs: Path, target: Layout, source: Layout) -> None:
    whole, resumed = runs / str(target), runs / f"{target}-from-{source}"
    tolerance = 0.0 if target == source else LAYOUT_TOLERANCE[target.precision]
    assert losses(resumed) == pytest.approx(losses(whole)[SAVED_AT:], rel=tolerance, abs=0)
    assert trace(resumed, "lr") == trace(whole, "lr")[SAVED_AT:]
    if target == source:
        assert_same_weights(resumed, whole)


@pytest.mark.parametrize(
    "layout",
    combinations([one for one in ALL if one.ranks == 2], first_tier={(one,) for one in FIRST if one.ranks == 2}),
    ids=str,
)
def test_an_infinite_gradient_leaves_weights_and_momentum_alone(runs: Path, layout: Layout) -> None:
    run = runs / f"{layout}-infinite"
    assert outcome(run) == {"step": UPDATES, "unchanged": [True], "diverged": None}
    assert all(weight.isfinite().all() for weight in final_weights(run).values())


@pytest.mark.parametrize("layout", combinations(ALL, first_tier={(one,) for one in FIRST}), ids=str)
def test_a_checkpoint_has_a_momentum_for_matrices_and_adams_moments_for_the_rest(runs: Path, layout: Layout) -> None:
    checkpoint = read_checkpoint(runs / str(layout) / "checkpoints" / f"step-{SAVED_AT:08}")
    verify_checkpoint(checkpoint)
    kinds: dict[str, set[str]] = {}
    moved = set()
    for path in checkpoint.shards.iterdir():
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118  # not a dictionary
                kind, name, _ = key.split("/")
                kinds.setdefault(name, set()).add(kind)
                if kind == "momentum" and file.get_tensor(key).any():
                    moved.add(name)
    for name, found in kinds.items():
        is_matrix = name.startswith(("encoder", "decoder")) and name.endswith("weight") and ".norm" not in name
        assert found == {"weight", "ema", *(["momentum"] if is_matrix else ["exp_avg", "exp_avg_sq"])}, name
        assert (name in moved) == is_matrix
