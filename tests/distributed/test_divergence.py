"""Infinite gradients are skipped and change nothing; training that diverges goes back to its last good checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.tiers import combinations
from support.training.cases import case, outcome, train_cases
from support.training.runs import records, trace

from dstransformer.data import Corpus
from dstransformer.data.plan import build_budget, plan_epoch
from dstransformer.data.windows import training_lengths
from dstransformer.model import open_bundle
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

pytestmark = pytest.mark.slow

#: Layouts in which the third of six updates has an infinite gradient. Those of the first tier are not in DIVERGING.
SKIPPING = [f"zero{stage}-{precision}" for stage in range(4) for precision in ("fp32", "bf16", "fp16")]
FIRST_TIER = ("zero1-bf16", "zero2-fp16")

#: Layouts that meet three bad updates in a row, at places in the first epoch, from 0; there is a checkpoint after the
#: first three updates.
DIVERGING = ["zero0-fp32", "zero2-bf16", "zero3-fp32"]
BAD = [4, 5, 6, 9]
OF_DIVERGING = [
    "training.max_updates=10", "training.skip_budget=2", "checkpoint.every_updates=3", "checkpoint.keep_last=9",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory, *, extended: bool) -> Path:
    out = tmp_path_factory.mktemp("divergence")
    common = ("training.max_updates=6", "optimizer.clip_norm=0.5", "checkpoint.every_updates=3")
    cases = [
        case(f"skipping-{name}", *common, fragments=name.split("-"), infinite=[3])
        for name in (SKIPPING if extended else FIRST_TIER)
    ]
    cases += [case(name, *OF_DIVERGING, fragments=name.split("-"), infinite_at=BAD) for name in DIVERGING]
    # The loss scale of fp16 cannot fall.
    smallest, fixed = out / "smallest.json", out / "fixed.json"
    smallest.write_text(json.dumps({"fp16": {"enabled": True, "initial_scale_power": 0, "hysteresis": 1}}))
    fixed.write_text(json.dumps({"fp16": {"enabled": True, "loss_scale": 128}}))
    endless = list(range(5, 41))
    cases += [
        case("fp16", *OF_DIVERGING, fragments=("zero1", str(smallest)), infinite_at=BAD),
        case("never", *OF_DIVERGING, "training.max_rollbacks=0", infinite_at=BAD),
        # It goes back to update 6, then to update 3, then may not.
        case("again", *OF_DIVERGING, "training.max_rollbacks=2", infinite_at=list(range(7, 20))),
        case("endless", "training.max_updates=40", fragments=("zero2", str(fixed)), infinite=endless),
    ]
    (out / "printed").write_text(train_cases(out, toy_corpus, cases))
    return out


@pytest.mark.parametrize("layout", combinations(SKIPPING, first_tier={(one,) for one in FIRST_TIER}))
def test_an_update_with_an_infinite_gradient_is_skipped_and_counted(runs: Path, layout: str) -> None:
    run = runs / f"skipping-{layout}"
    assert outcome(run) == {"step": 6, "unchanged": [True], "diverged": None}
    assert trace(run, "skipped_share") == [0, 0, 1, 0, 0, 0]
    assert [norm is None for norm in trace(run, "grad_norm")] == [False, False, True, False, False, False]
    rates = trace(run, "lr")
    assert rates[3] == rates[2] < rates[4], "the schedule does not count skipped updates"
    assert None not in trace(run, "loss")
    assert len(set(trace(run, "loss_scale"))) == 1, "the hysteresis of fp16 allows one such gradient"
    if "fp16" not in layout:  # whose loss scale skips updates of sound runs too
        assert not (run / "checkpoints" / "step-00000003").exists(), "none is due after a bad update"
    checkpoint = read_checkpoint(run / "checkpoints" / "step-00000006")
    verify_checkpoint(checkpoint)
    assert all(weight.isfinite().all() for weight in open_bundle(checkpoint.bundle).load_weights().values())


def test_deepspeed_prints_nothing_of_it(runs: Path) -> None:
    assert "OVERFLOW" not in (runs / "printed").read_text()


def test_more_skipped_updates_in_a_row_than_the_budget_are_divergence(runs: Path) -> None:
    """In fp16 with a loss scale that is fixed, too."""
    said = outcome(runs / "endless")
    assert said["unchanged"] == [True] * 21
    assert "gradients of 21 updates in a row, up to 25, are NaN or infinite" in said["diverged"]


@pytest.mark.parametrize("layout", [*DIVERGING, "fp16"])
def test_training_goes_back_and_on_with_the_data_after(runs: Path, layout: str) -> None:
    run = runs / layout
    assert outcome(run) == {"step": 10, "unchanged": [True] * 4, "diverged": None}
    assert trace(run, "step") == [1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9, 10]
    (rollback,) = records(run, "rollback")
    assert (rollback["number"], rollback["step"], rollback["diverged_at"]) == (1, 3, 7)
    assert rollback["passed_over"] == [[0, 3], [0, 7]]
    bad: list[dict[str, Any]] = rollback["bad_updates"]
    assert [(one["step"], one["update"], one["in_a_row"]) for one in bad] == [(5, 4, 1), (6, 5, 2), (7, 6, 3)]
    last = records(run, "bad_update")[-1]
    assert (last["update"], last["in_a_row"], last["step"]) == (9, 1, 6), "one bad update is skipped as ever"
    assert last["pairs"] == sorted(set(last["pairs"]))


def test_the_sentences_of_bad_updates_are_the_plans(runs: Path, toy_corpus: Path) -> None:
    run = runs / DIVERGING[0]
    config = open_bundle(run / "checkpoints" / "step-00000003" / "bundle").training_config()
    lengths = training_lengths(Corpus.open(toy_corpus).split("train"))
    plan = plan_epoch(*lengths, config.training.seed, 0, build_budget(config.batch))
    for bad in records(run, "bad_update"):
        assert bad["pairs"] == sorted(plan.update(bad["update"]).tolist())


def test_a_run_killed_after_it_went_back_ends_the_same(runs: Path, toy_corpus: Path, tmp_path: Path) -> None:
    """The checkpoint says where to go on: a run that resumes from it repeats the one that was never killed."""
    name = DIVERGING[0]
    (tmp_path / name).mkdir()
    copied = tmp_path / name / "checkpoints" / "step-00000003"
    shutil.copytree(runs / name / "checkpoints" / "step-00000003", copied)
    verify_checkpoint(read_checkpoint(copied))
    state = read_checkpoint(copied).state
    assert (state.position.update, state.recovery.rollbacks, state.recovery.rollback_step) == (7, 1, 3)
    resumed = f"{name}/checkpoints/step-00000003"
    train_cases(
        tmp_path, toy_corpus, [case(name, *OF_DIVERGING, fragments=name.split("-"), infinite_at=BAD, resume=resumed)]
    )
    weights = [
        open_bundle(out / name / "checkpoints" / "step-00000010" / "bundle").load_weights() for out in (runs, tmp_path)
    ]
    assert all(weight.equal(weights[1][key]) for key, weight in weights[0].items())


def test_without_rollbacks_the_run_ends(runs: Path) -> None:
    said = outcome(runs / "never")["diverged"]
    assert "the losses or gradients of 3 updates in a row, up to 7, are NaN or infinite" in said
    assert "training.skip_budget is 2" in said
    assert not records(runs / "never", "rollback")


def test_it_goes_back_further_if_it_diverges_again_and_ends_at_the_limit(runs: Path) -> None:
    rollbacks = records(runs / "again", "rollback")
    assert [(one["number"], one["step"], one["diverged_at"]) for one in rollbacks] == [(1, 6, 10), (2, 3, 9)]
    assert rollbacks[1]["passed_over"] == [[0, 3], [0, 13]]
    assert "3 updates in a row, up to 6" in outcome(runs / "again")["diverged"]
    assert [path.name for path in sorted((runs / "again" / "checkpoints").glob("step-*"))] == ["step-00000003"]
