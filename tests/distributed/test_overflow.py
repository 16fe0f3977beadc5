"""An infinite gradient on one rank: every ZeRO stage skips the update, counts it, and leaves the weights unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks

from dstransformer.checkpoints.format import read_checkpoint, verify_checkpoint
from dstransformer.model import open_bundle

WORKER = Path(__file__).with_name("worker.py")
LAYOUTS = [f"zero{stage}-{precision}" for stage in range(4) for precision in ("bf16", "fp32")]


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six updates in each layout, the third with an infinite gradient, and a run of nothing else from the fifth on."""
    out = tmp_path_factory.mktemp("overflow")
    common = ["training.max_updates=6", "optimizer.clip_norm=0.5"]
    cases: list[dict[str, Any]] = [
        {"name": name, "overrides": common, "fragments": name.split("-"), "infinite": [3]} for name in LAYOUTS
    ]
    # This case saves a checkpoint right after the skipped update.
    cases[0]["overrides"] = [*common, "checkpoint.every_updates=3"]
    endless = {"overrides": ["training.max_updates=40"], "fragments": ["zero2", "bf16"], "infinite": list(range(5, 41))}
    cases.append({"name": "endless", **endless})
    (out / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(2, str(WORKER), str(out / "cases.json"), str(toy_corpus), str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def outcome(run: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((run / "outcome.json").read_text())
    return said


def trace(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_update_with_an_infinite_gradient_is_skipped_and_counted(runs: Path, layout: str) -> None:
    assert outcome(runs / layout) == {"step": 6, "unchanged": [True], "diverged": None}
    lines = trace(runs / layout)
    assert [line["skipped_share"] for line in lines] == [0, 0, 1, 0, 0, 0]
    assert [line["grad_norm"] is None for line in lines] == [False, False, True, False, False, False]
    rates = [line["lr"] for line in lines]
    assert rates[3] == rates[2] < rates[4], "the schedule does not count skipped updates"
    assert all(line["loss"] is not None for line in lines)


@pytest.mark.slow
def test_a_checkpoint_is_saved_after_a_skipped_update(runs: Path) -> None:
    checkpoint = read_checkpoint(runs / LAYOUTS[0] / "checkpoints" / "step-00000003")
    verify_checkpoint(checkpoint)
    assert all(weight.isfinite().all() for weight in open_bundle(checkpoint.bundle).load_weights().values())


@pytest.mark.slow
def test_twenty_skipped_updates_in_a_row_are_divergence(runs: Path) -> None:
    said = outcome(runs / "endless")
    assert said["unchanged"] == [True] * 19, "the twentieth raises"
    assert (
        "20 updates in a row, up to 24, were skipped because their gradients were NaN or infinite" in said["diverged"]
    )
