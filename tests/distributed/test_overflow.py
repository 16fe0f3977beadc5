"""An infinite gradient on one rank: in every stage and precision the update is skipped, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.processes.ranks import run_ranks
from support.tiers import combinations

from dstransformer.model import open_bundle
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

WORKER = Path(__file__).with_name("worker.py")
LAYOUTS = [f"zero{stage}-{precision}" for stage in range(4) for precision in ("fp32", "bf16", "fp16")]
FIRST_TIER = ("zero0-fp32", "zero1-bf16", "zero2-fp16", "zero3-fp32")


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory, *, extended: bool) -> Path:
    """Six updates in each layout, the third with an infinite gradient, and a run of nothing else from the fifth on."""
    out = tmp_path_factory.mktemp("overflow")
    common = ["training.max_updates=6", "optimizer.clip_norm=0.5"]
    cases: list[dict[str, Any]] = [
        {"name": name, "overrides": common, "fragments": name.split("-"), "infinite": [3]}
        for name in (LAYOUTS if extended else FIRST_TIER)
    ]
    # Here a checkpoint would be due after the bad update.
    cases[0]["overrides"] = [*common, "checkpoint.every_updates=3"]
    endless = {"overrides": ["training.max_updates=40"], "fragments": ["zero2", "bf16"], "infinite": list(range(5, 41))}
    cases.append({"name": "endless", **endless})
    fixed = out / "fixed.json"
    fixed.write_text(json.dumps({"fp16": {"enabled": True, "loss_scale": 128}}))
    cases.append({"name": "endless-fixed", **endless, "fragments": ["zero2", str(fixed)]})
    (out / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(2, str(WORKER), str(out / "cases.json"), str(toy_corpus), str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (out / "printed").write_text(done.stdout + done.stderr)
    return out


def outcome(run: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((run / "outcome.json").read_text())
    return said


def trace(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", combinations(LAYOUTS, first_tier={(one,) for one in FIRST_TIER}))
def test_an_update_with_an_infinite_gradient_is_skipped_and_counted(runs: Path, layout: str) -> None:
    assert outcome(runs / layout) == {"step": 6, "unchanged": [True], "diverged": None}
    lines = trace(runs / layout)
    assert [line["skipped_share"] for line in lines] == [0, 0, 1, 0, 0, 0]
    assert [line["grad_norm"] is None for line in lines] == [False, False, True, False, False, False]
    rates = [line["lr"] for line in lines]
    assert rates[3] == rates[2] < rates[4], "the schedule does not count skipped updates"
    assert all(line["loss"] is not None for line in lines)
    assert len({line["loss_scale"] for line in lines}) == 1, "the hysteresis of fp16 allows one such gradient"


@pytest.mark.slow
def test_deepspeed_prints_nothing_of_it(runs: Path) -> None:
    assert "OVERFLOW" not in (runs / "printed").read_text()


@pytest.mark.slow
def test_no_checkpoint_is_due_after_a_bad_update_and_the_next_is_sound(runs: Path) -> None:
    assert not (runs / LAYOUTS[0] / "checkpoints" / "step-00000003").exists()
    checkpoint = read_checkpoint(runs / LAYOUTS[0] / "checkpoints" / "step-00000006")
    verify_checkpoint(checkpoint)
    assert all(weight.isfinite().all() for weight in open_bundle(checkpoint.bundle).load_weights().values())


@pytest.mark.slow
@pytest.mark.parametrize("run", ["endless", "endless-fixed"])
def test_more_skipped_updates_in_a_row_than_the_budget_are_divergence(runs: Path, run: str) -> None:
    """Also in fp16 with a loss scale that is fixed."""
    said = outcome(runs / run)
    assert said["unchanged"] == [True] * 21
    assert "gradients of 21 updates in a row, up to 25, are NaN or infinite" in said["diverged"]
