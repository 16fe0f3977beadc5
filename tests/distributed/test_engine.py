"""Training with real ranks: every ZeRO stage in every precision, layouts of ranks and accumulation steps, resuming."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models.numerics import LAYOUT_TOLERANCE
from support.tiers import combinations
from support.training.cases import Case, case, final_weights, train_cases
from support.training.runs import losses, records, trace

from dstransformer.model import open_bundle

pytestmark = pytest.mark.slow

STAGES = (0, 1, 2, 3)
PRECISIONS = ("fp32", "bf16", "fp16")
#: Stages and precisions that `make test` trains. The rest of the product is extended.
FIRST_TIER = {(0, "fp32"), (1, "bf16"), (2, "fp16"), (3, "fp32")}
EVERY_LAYOUT = combinations(STAGES, PRECISIONS, first_tier=FIRST_TIER)
#: For cases in which the number of layers does not matter.
ONE_LAYER = "model.num_layers=1"

AUGMENT = (
    "training.augment=[{modifier: upper, probability: 0.2}, {modifier: typos, probability: 0.5, rate: 0.1}, "
    "{modifier: noise, probability: 0.1}]"
)

TEN, DROPOUT = "training.max_updates=10", "model.dropout=0.1"
R_DROP, BPE_DROPOUT = "loss.r_drop=5.0", ("training.bpe_dropout=0.1", "optimizer.ema_decay=0.6")

#: What one, two and four ranks train. Dropout masks depend on the micro-batch, not on the rank that computes it.
LAYOUTS = [
    case("bf16", TEN, DROPOUT, fragments=("zero1", "bf16")),
    case("fp16", TEN, DROPOUT, fragments=("zero2", "fp16")),
    case("together", TEN, DROPOUT, R_DROP, *BPE_DROPOUT, AUGMENT),
    case("plain", TEN),
    case("bf16_zero3", TEN, DROPOUT, fragments=("zero3", "bf16")),
    case("dropout", TEN, DROPOUT),
    case("r_drop", TEN, DROPOUT, R_DROP),
    case("bpe_dropout", TEN, *BPE_DROPOUT),
    case("augment", TEN, AUGMENT),
]
#: Those of them that `make test` trains.
FIRST_LAYOUTS = ("bf16", "fp16", "together")
R_DROP_FRAGMENTS = [("zero3", "fp32"), ("zero1", "bf16"), ("zero2", "fp16"), ("zero3", "fp16")]
EVERY_UPDATE = ("training.max_updates=4", "checkpoint.every_updates=1", "checkpoint.keep_last=4", ONE_LAYER)
EMA_FRAGMENTS = [
    ("zero0", "fp32"), ("zero0", "bf16"), ("zero1", "bf16"), ("zero2", "fp16"), ("zero3", "fp32"), ("zero3", "bf16"),
]  # fmt: skip

#: Stages and precisions whose clipping `make test` compares with that of (0, "fp32").
FIRST_CLIPPED = {(0, "fp32"), (2, "fp16"), (3, "fp32")}

#: The cases on two ranks that `make test` needs.
FIRST_CASES = {
    *(f"zero{stage}-{precision}" for stage, precision in FIRST_TIER),
    *(f"clip-{stage}-{precision}" for stage, precision in FIRST_CLIPPED),
    "overflow-2", "r_drop-zero3-fp32", "dropout", "r_drop", *FIRST_LAYOUTS,
    *(f"{kind}-zero{layout}" for kind in ("ema", "raw") for layout in ("1-bf16", "3-fp32")),
}  # fmt: skip


@pytest.fixture(scope="module")
def train(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, list[Case]], Path]:
    """A function that trains cases on a number of ranks and returns the folder of their runs."""

    def run(ranks: int, cases: list[Case]) -> Path:
        out = tmp_path_factory.mktemp(f"ranks{ranks}-")
        train_cases(out, toy_corpus, cases, ranks, TORCH_EXTENSIONS_DIR=str(out / "operators"))
        return out

    return run


def flops(run: Path) -> list[float]:
    """The FLOPs counted up to each update."""
    return [line["flops"] for line in records(run, "cost")]


@pytest.fixture(scope="module")
def two_ranks(
    train: Callable[[int, list[Case]], Path], tmp_path_factory: pytest.TempPathFactory, *, extended: bool
) -> Path:
    matrix = [
        case(
            f"zero{stage}-{precision}",
            "training.max_updates=30",
            ONE_LAYER,
            fragments=(f"zero{stage}", precision),
            final=precision == "bf16",
        )
        for stage in STAGES
        for precision in PRECISIONS
    ]
    # A large epsilon, so that Adam does not undo what clipping and scaling do to the gradient.
    clip = (ONE_LAYER, TEN, "optimizer.clip_norm=0.01", "optimizer.eps=1e-4")
    clipped = [
        case(f"clip-{stage}-{precision}", *clip, fragments=(f"zero{stage}", precision))
        for stage in STAGES
        for precision in PRECISIONS
    ]
    # The first loss scales are too large for fp16, so the first updates are skipped.
    folder = tmp_path_factory.mktemp("json")
    overflowing = folder / "overflowing.json"
    overflowing.write_text(json.dumps({"fp16": {"enabled": True, "initial_scale_power": 32, "hysteresis": 1}}))
    overflows = [
        case(f"overflow-{stage}", "training.max_updates=30", ONE_LAYER, fragments=(f"zero{stage}", str(overflowing)))
        for stage in STAGES
    ]
    r_drop = [
        case(f"r_drop-{'-'.join(fragments)}", TEN, DROPOUT, R_DROP, fragments=fragments)
        for fragments in R_DROP_FRAGMENTS
    ]
    averaged = [
        case(f"{name}-{'-'.join(fragments)}", *EVERY_UPDATE, decay, fragments=fragments)
        for fragments in EMA_FRAGMENTS
        for name, decay in (("ema", "optimizer.ema_decay=0.2"), ("raw", "optimizer.ema_decay=0.0"))
    ]
    cases = [*matrix, *clipped, *overflows, *r_drop, *averaged, *LAYOUTS]
    return train(2, [one for one in cases if extended or one["name"] in FIRST_CASES])


def test_no_operator_is_compiled_without_offloading(two_ranks: Path) -> None:
    assert not list((two_ranks / "operators").rglob("*")), "compiling takes a minute and needs a compiler on every node"


class TestStagesAndPrecisions:
    @pytest.mark.parametrize(("stage", "precision"), EVERY_LAYOUT)
    def test_the_loss_falls(self, two_ranks: Path, stage: int, precision: str) -> None:
        values = losses(two_ranks / f"zero{stage}-{precision}")
        assert len(values) == 30
        assert sum(values[-5:]) / 5 < 0.75 * values[0]

    @pytest.mark.parametrize("stage", combinations(STAGES[1:], first_tier={(3,)}))
    def test_stages_agree_in_fp32(self, two_ranks: Path, stage: int) -> None:
        expected, actual = two_ranks / "zero0-fp32", two_ranks / f"zero{stage}-fp32"
        assert losses(actual) == pytest.approx(losses(expected), rel=1e-5)
        torch.testing.assert_close(final_weights(actual), final_weights(expected), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("stage", combinations(STAGES, first_tier={(2,)}))
    def test_fp16_skips_overflowing_updates_and_finds_its_loss_scale(self, two_ranks: Path, stage: int) -> None:
        run = two_ranks / f"overflow-{stage}"
        skipped = list(map(int, trace(run, "skipped_share")))
        found = skipped.index(0)
        assert 5 <= found <= 25
        assert sum(skipped[found:]) <= 3
        assert trace(run, "loss_scale") == [2.0 ** (32 - sum(skipped[: update + 1])) for update in range(30)]
        applied = [rate for rate, skip in zip(trace(run, "lr"), skipped, strict=True) if not skip]
        expected = trace(two_ranks / f"zero{stage}-fp16", "lr")
        assert applied == expected[: len(applied)], "skipped updates do not advance the schedule"
        values = losses(run)
        assert sum(values[-3:]) / 3 < 0.95 * values[0]

    @pytest.mark.parametrize(
        ("stage", "precision"), combinations(STAGES, PRECISIONS[1:], first_tier={(1, "bf16"), (2, "fp16")})
    )
    def test_half_precision_stays_close_to_fp32(self, two_ranks: Path, stage: int, precision: str) -> None:
        expected, actual = two_ranks / "zero0-fp32", two_ranks / f"zero{stage}-{precision}"
        assert losses(actual)[-1] == pytest.approx(losses(expected)[-1], rel=0.05)

    @pytest.mark.parametrize(("stage", "precision"), EVERY_LAYOUT)
    def test_every_metric_is_logged(self, two_ranks: Path, stage: int, precision: str) -> None:
        for line in records(two_ranks / f"zero{stage}-{precision}", "train"):
            for key in ("lr", "grad_norm", "src_tokens", "tgt_tokens", "tokens_per_second", "perplexity", "loss_scale"):
                assert math.isfinite(line[key]), key
            assert line["skipped_share"] == 0.0
            assert (line["loss_scale"] > 1) == (precision == "fp16")

    @pytest.mark.parametrize(("stage", "precision"), combinations(STAGES, PRECISIONS, first_tier=FIRST_CLIPPED))
    def test_clipping_and_loss_scaling_agree(self, two_ranks: Path, stage: int, precision: str) -> None:
        expected, actual = two_ranks / "clip-0-fp32", two_ranks / f"clip-{stage}-{precision}"
        tolerance = 1e-5 if precision == "fp32" else 5e-3
        assert losses(actual) == pytest.approx(losses(expected), rel=tolerance)
        assert losses(expected)[-1] != pytest.approx(losses(two_ranks / "zero0-fp32")[9], rel=0.02)
        assert trace(actual, "grad_norm") == pytest.approx(trace(expected, "grad_norm"), rel=0.05)


class TestRegularisers:
    @pytest.mark.parametrize("fragments", combinations(R_DROP_FRAGMENTS, first_tier={(("zero3", "fp32"),)}))
    def test_r_drop_agrees_in_all_stages_and_precisions(self, two_ranks: Path, fragments: tuple[str, str]) -> None:
        expected, actual = two_ranks / "r_drop", two_ranks / f"r_drop-{'-'.join(fragments)}"
        assert losses(actual) == pytest.approx(losses(expected), rel=1e-5 if "fp32" in fragments else 0.02)
        assert losses(actual)[0] > 1.001 * losses(two_ranks / "dropout")[0], "R-Drop adds the divergence"

    @pytest.mark.parametrize(
        "fragments", combinations(EMA_FRAGMENTS, first_tier={(("zero1", "bf16"),), (("zero3", "fp32"),)})
    )
    def test_checkpoints_hold_the_moving_average(self, two_ranks: Path, fragments: tuple[str, str]) -> None:
        """``average = share * average + (1 - share) * weights``, from the second update on."""
        name = "-".join(fragments)
        raw, averaged = (saved_weights(two_ranks / f"{kind}-{name}") for kind in ("raw", "ema"))
        average = averaged[0]  # it includes the initial weights, which are in no checkpoint
        assert any(not torch.equal(average[key], raw[0][key]) for key in average)
        for update in range(2, 5):
            share = min(0.2, (1 + update) / (10 + update))
            average = {key: share * average[key] + (1 - share) * raw[update - 1][key] for key in average}
            torch.testing.assert_close(averaged[update - 1], average, rtol=1e-5, atol=1e-6)
        assert losses(two_ranks / f"ema-{name}") == losses(two_ranks / f"raw-{name}"), (
            "the average does not affect training"
        )


def saved_weights(run: Path) -> list[dict[str, torch.Tensor]]:
    """The weights in the bundle of every checkpoint."""
    return [open_bundle(path / "bundle").load_weights() for path in sorted((run / "checkpoints").glob("step-*"))]


@pytest.mark.parametrize("in_first_tier", combinations([True, False], first_tier={(True,)}))
def test_any_layout_of_ranks_and_accumulation_gives_the_same_trace(
    train: Callable[[int, list[Case]], Path], two_ranks: Path, *, in_first_tier: bool
) -> None:
    layouts = [layout for layout in LAYOUTS if (layout["name"] in FIRST_LAYOUTS) == in_first_tier]
    for out in (train(1, layouts), train(4, layouts)):
        for layout in layouts:
            rel = LAYOUT_TOLERANCE[layout["fragments"][1]]
            assert losses(out / layout["name"]) == pytest.approx(losses(two_ranks / layout["name"]), rel=rel)
            assert flops(out / layout["name"]) == flops(two_ranks / layout["name"])


def test_from_the_same_weights_two_layouts_compute_the_same_update_however_steep_the_warm_up(
    train: Callable[[int, list[Case]], Path],
) -> None:
    """Two ranks take up a run of one rank before some of its updates, and compute one each.

    By induction, traces that part over many updates do so by rounding, which Adam's first steps magnify. The bound: an
    update sums four micro-batches and scales the sum twice, five roundings of at most 2^-24 each, and the parts of a
    gradient cancel to a third of their size or more.
    """
    steep = ("schedule.warmup_steps=20", "training.max_updates=10", "checkpoint.every_updates=1")
    one = train(1, [case("steep", *steep, "checkpoint.keep_last=10")])
    expected, updates = records(one / "steep", "train"), (3, 5, 8, 10)
    cases = [
        case(
            f"update-{update}",
            "schedule.warmup_steps=20",
            f"training.max_updates={update}",
            resume=str(one / "steep" / "checkpoints" / f"step-{update - 1:08}"),
        )
        for update in updates
    ]
    two = train(2, cases)
    for update in updates:
        (line,) = records(two / f"update-{update}", "train")
        wanted = expected[update - 1]
        assert (line["step"], line["lr"], line["tgt_tokens"]) == (update, wanted["lr"], wanted["tgt_tokens"])
        for name in ("loss", "grad_norm"):
            assert line[name] == pytest.approx(wanted[name], rel=3 * 5 * 2**-24), (update, name)
