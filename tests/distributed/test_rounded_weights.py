"""Weights that are rounded before they are used train exactly as weights that are rounded at each use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.training.cases import assert_same_weights, case, train_cases, write_scattered
from support.training.runs import losses, records

pytestmark = pytest.mark.extended

#: Everything that changes weights or reads them between updates: updates that are skipped until training goes back to
#: a checkpoint, validation, checkpoints, the moving average in the place of the weights, and a run that resumes.
COMMON = [
    "training.max_updates=10", "training.skip_budget=2", "checkpoint.every_updates=3", "checkpoint.keep_last=9",
    "validation.every=2", "optimizer.ema_decay=0.6", "model.dropout=0.1", "model.num_layers=1",
]  # fmt: skip
BAD = [4, 5, 6]
LAYOUTS = ["zero0-bf16", "zero1-fp16", "zero2-bf16"]
KINDS = ("always", "once")

#: At stage 3, where no matrix is whole on every rank.
GATHERED = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
GATHER_KINDS = ("rounded", "whole")


@pytest.fixture(scope="module")
def gathered(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gathered")
    scattered, overrides = write_scattered(out), [change for change in COMMON if "every_updates" not in change]
    cases = [
        case(f"{precision}-{kind}", *overrides, fragments=(scattered, precision), gather_whole=kind == "whole")
        for precision in GATHERED
        for kind in GATHER_KINDS
    ]
    train_cases(out, toy_corpus, cases)
    return out


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rounded")
    cases = []
    for layout in LAYOUTS:
        for kind in KINDS:
            name, fragments, once = f"{layout}-{kind}", layout.split("-"), kind == "once"
            resume = f"{name}/checkpoints/step-00000003"
            cases.append(case(name, *COMMON, fragments=fragments, round_once=once, infinite_at=BAD, final=True))
            cases.append(
                case(f"{name}-resumed", *COMMON, fragments=fragments, round_once=once, resume=resume, final=True)
            )
    train_cases(out, toy_corpus, cases)
    return out


def results(run: Path) -> list[tuple[float, ...]]:
    """Losses and gradient norms of all updates, and losses of all validations."""
    return [
        tuple(line[name] for name in ("step", "loss", "grad_norm", "nll") if name in line)
        for line in records(run, "train", "valid")
    ]


@pytest.mark.parametrize("suffix", ["", "-resumed"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounding_once_changes_no_bit(runs: Path, layout: str, suffix: str) -> None:
    always, once = (runs / f"{layout}-{kind}{suffix}" for kind in KINDS)
    assert len(results(always)) > 10 - 3 * bool(suffix)
    assert results(once) == results(always)
    assert_same_weights(once, always)
    if "bf16" in layout and not suffix:
        assert len(records(once, "rollback")) == 1


@pytest.mark.parametrize("precision", GATHERED)
def test_matrices_that_travel_rounded_change_no_bit(gathered: Path, precision: str) -> None:
    """Neither do the weights lose precision: those of all ranks together are read in fp32."""
    rounded, whole = (gathered / f"{precision}-{kind}" for kind in GATHER_KINDS)
    assert len(results(whole)) > 10
    assert results(rounded) == results(whole)
    assert_same_weights(rounded, whole)
    of_rounded, of_whole = (json.loads((run / "gathered.json").read_text()) for run in (rounded, whole))
    assert set(of_whole) == {"torch.float32"}
    assert set(of_rounded) == {"torch.float32", GATHERED[precision]}
    assert sum(of_rounded.values()) == sum(of_whole.values())
    assert of_rounded[GATHERED[precision]] > 0.5 * sum(of_whole.values())


def test_gradients_travel_rounded_at_every_stage(toy_corpus: Path, tmp_path: Path) -> None:
    """Their rounding shows in the losses, and hardly."""
    stages = ("zero0", "zero1", "zero2", "zero3")
    overrides = ("training.max_updates=20", "model.num_layers=1")
    train_cases(tmp_path, toy_corpus, [case(stage, *overrides, fragments=(stage, "bf16")) for stage in stages])
    rounded = [case(f"{stage}-rounded", *overrides, fragments=(stage, "bf16", "bf16_gradients")) for stage in stages]
    train_cases(tmp_path, toy_corpus, rounded)
    for stage in stages:
        before, after = (torch.tensor(losses(tmp_path / name)) for name in (stage, f"{stage}-rounded"))
        assert len(before) == 20
        assert 0 < (after - before).abs().max() < 0.02, stage
