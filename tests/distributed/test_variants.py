"""What can be switched on in a training, on two ranks: activation checkpointing, 8-bit weights, partitions on nodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.training.cases import Case, assert_same_weights, case, final_weights, train_cases, write_scattered
from support.training.runs import TINY, losses, records

from dstransformer.config import load_config
from dstransformer.data import Corpus
from dstransformer.data.packing import pack_pairs
from dstransformer.model import Transformer
from dstransformer.model.loss import Objective
from dstransformer.model.ops import int8_values

pytestmark = pytest.mark.slow

#: Of activation checkpointing: ZeRO stages with precisions, and the weight of R-Drop.
RECOMPUTED = [("zero1", "bf16", 0), ("zero3", "fp32", 0)]
ALSO_RECOMPUTED = [
    ("zero0", "fp32", 0), ("zero1", "fp32", 0), ("zero2", "fp16", 0), ("zero3", "bf16", 0), ("zero3", "fp32", 5),
]  # fmt: skip

#: Of 8-bit weights, whose stage 3 must not quantise in bf16 what it gathers rounded.
EIGHT_BITS = [("zero0", "fp32"), ("zero1", "fp32"), ("zero2", "bf16"), ("zero3", "fp32"), ("zero3", "bf16")]
OF_EIGHT_BITS = [
    "training.max_updates=6", "checkpoint.every_updates=3", "checkpoint.keep_last=9", "model.num_layers=1",
    "model.dropout=0.1", "validation.every=3",
]  # fmt: skip

#: Of sub-layers that begin at zero. The encoder has its first gradient in the second update, when the attention over it
#: is no longer zero.
RATE, UPDATES = 1e-3, 3
FROM_ZERO = [
    "training.zero_init_residual=true", f"training.max_updates={UPDATES}", "schedule.warmup_steps=1",
    f"schedule.peak={RATE}",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory, *, extended: bool) -> Path:
    out = tmp_path_factory.mktemp("variants")
    stage_3 = {"zero3": write_scattered(out)}
    cases = [*recomputed_cases(stage_3, extended=extended), *eight_bit_cases(stage_3), *secondary_cases(out)]
    cases += [case(f"from-zero-{stage}", *FROM_ZERO, fragments=(stage, "fp32")) for stage in ("zero1", "zero3")]
    train_cases(out, toy_corpus, cases)
    return out


def recomputed_cases(stage_3: dict[str, str], *, extended: bool) -> list[Case]:
    common = ["training.max_updates=3", "model.dropout=0.1"]
    return [
        case(
            f"recomputed-{stage}-{precision}-{r_drop}-{value}",
            *common, f"loss.r_drop={r_drop}", f"training.activation_checkpointing={value}",
            fragments=(stage_3.get(stage, stage), precision),
        )
        for stage, precision, r_drop in RECOMPUTED + ALSO_RECOMPUTED * extended
        for value in ("false", "true")
    ]  # fmt: skip


def eight_bit_cases(stage_3: dict[str, str]) -> list[Case]:
    overrides = [*OF_EIGHT_BITS, "training.int8_weights=true"]
    cases = []
    for stage, precision in EIGHT_BITS:
        checkpointing = f"training.activation_checkpointing={'true' if stage == 'zero3' else 'false'}"
        fragments = (stage_3.get(stage, stage), precision)
        cases.append(case(f"int8-{stage}-{precision}", *overrides, checkpointing, fragments=fragments))
    cases.append(case("int8-resumed", *overrides, resume="int8-zero1-fp32/checkpoints/step-00000003"))
    return [*cases, case("int8-without", *OF_EIGHT_BITS)]


def secondary_cases(out: Path) -> list[Case]:
    """Stage 3 with a copy of the weights on each node (ZeRO++ hpZ)."""
    section = {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 100}
    (out / "hpz.json").write_text(json.dumps({"zero_optimization": section}))
    overrides, fragments = ("training.max_updates=5", "checkpoint.every_updates=3"), (str(out / "hpz.json"), "bf16")
    return [
        case("hpz-whole", *overrides, fragments=fragments),
        case("hpz-resumed", *overrides, fragments=fragments, resume="hpz-whole/checkpoints/step-00000003"),
    ]


@pytest.mark.parametrize(
    ("stage", "precision", "r_drop"),
    [*RECOMPUTED, *(pytest.param(*one, marks=pytest.mark.extended) for one in ALSO_RECOMPUTED)],
)
def test_activation_checkpointing_changes_no_bit(runs: Path, stage: str, precision: str, r_drop: int) -> None:
    plain, again = (runs / f"recomputed-{stage}-{precision}-{r_drop}-{value}" for value in ("false", "true"))
    assert losses(again) == losses(plain)
    assert_same_weights(again, plain)


def test_with_8_bit_weights_ranks_stages_and_resumes_compute_the_same(runs: Path) -> None:
    """In two accumulation steps."""
    whole = runs / "int8-zero1-fp32"
    for other in ("zero0-fp32", "zero3-fp32"):
        assert losses(runs / f"int8-{other}") == pytest.approx(losses(whole), rel=1e-4)
    assert losses(runs / "int8-zero3-bf16") == pytest.approx(losses(runs / "int8-zero2-bf16"), rel=1e-3)
    assert losses(runs / "int8-resumed") == losses(whole)[3:]
    assert validations(runs / "int8-resumed") == validations(whole)[1:]
    assert_same_weights(runs / "int8-resumed", whole)
    first, without = losses(whole)[0], losses(runs / "int8-without")[0]
    assert 0 < abs(first - without) < 0.02 * without


def test_validation_scores_the_8_bit_weights(runs: Path, toy_corpus: Path) -> None:
    weights = final_weights(runs / "int8-zero1-fp32")
    quantised = {name: int8_values(weight) if weight.dim() == 2 else weight for name, weight in weights.items()}
    scored = validations(runs / "int8-zero1-fp32")[-1]
    assert validation_loss(quantised, toy_corpus) == pytest.approx(scored, rel=1e-5)
    assert validation_loss(weights, toy_corpus) != pytest.approx(scored, rel=1e-5)


def validations(run: Path) -> list[float]:
    return [line["loss"] for line in records(run, "valid")]


@torch.no_grad()
def validation_loss(weights: dict[str, torch.Tensor], corpus_path: Path) -> float:
    corpus, config = Corpus.open(corpus_path), load_config("toy", [*TINY, *OF_EIGHT_BITS])
    split = corpus.split("validation")
    model = Transformer(config.model, corpus.tokenizer.vocab_size).eval()
    model.load_state_dict(weights)
    batch = pack_pairs(*split.gather(np.arange(len(split))))
    return float(Objective(model, config.loss.label_smoothing)(*batch).loss) / batch.tgt_out.numel()


def test_a_resumed_run_with_partitions_on_nodes_equals_an_uninterrupted_one(runs: Path) -> None:
    """It computes with what it loaded, not with the copies."""
    assert losses(runs / "hpz-resumed") == losses(runs / "hpz-whole")[3:]
    assert_same_weights(runs / "hpz-resumed", runs / "hpz-whole")


@pytest.mark.parametrize("stage", ["zero1", "zero3"])
def test_updates_move_sub_layers_away_from_zero(runs: Path, stage: str) -> None:
    weights = final_weights(runs / f"from-zero-{stage}")
    zeroed = {name for name in weights if name.endswith((".out.weight", ".outer.weight"))}
    assert len(zeroed) == 10  # two layers each side, of two and three sub-layers
    for name, weight in weights.items():
        if name in zeroed:
            assert 0 < float(weight.abs().max()) < 2 * UPDATES * RATE, name  # an update of Adam is about the rate
        elif name.endswith("weight") and "norm" not in name:
            assert float(weight.abs().max()) > 2 * UPDATES * RATE, name
