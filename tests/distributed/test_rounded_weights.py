"""Weights that are rounded once an update train exactly as weights that are rounded at each use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.ranks import run_ranks

WORKER = Path(__file__).with_name("worker.py")

#: Everything that changes weights or reads them between updates: updates that are skipped until training goes back to
#: a checkpoint, validation, checkpoints, the moving average in the place of the weights, and a run that resumes.
COMMON = [
    "training.max_updates=10", "training.skip_budget=2", "checkpoint.every_updates=3", "checkpoint.keep_last=9",
    "validation.every=2", "optimizer.ema_decay=0.6", "model.dropout=0.1", "model.num_layers=1",
]  # fmt: skip
BAD = [4, 5, 6]
LAYOUTS = ["zero0-bf16", "zero1-fp16", "zero2-bf16"]
KINDS = ("always", "once")


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rounded")
    cases: list[dict[str, Any]] = []
    for layout in LAYOUTS:
        for kind in KINDS:
            shared = {"overrides": COMMON, "fragments": layout.split("-"), "round_once": kind == "once"}
            resume = f"{layout}-{kind}/checkpoints/step-00000003"
            cases.append({"name": f"{layout}-{kind}", "infinite_at": BAD, **shared})
            cases.append({"name": f"{layout}-{kind}-resumed", "resume": resume, **shared})
    (out / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(2, str(WORKER), str(out / "cases.json"), str(toy_corpus), str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def read_lines(run: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] in kinds]


def results(run: Path) -> list[tuple[float, ...]]:
    """Losses and gradient norms of all updates, and losses of all validations."""
    return [
        tuple(line[name] for name in ("step", "loss", "grad_norm", "nll") if name in line)
        for line in read_lines(run, "train", "valid")
    ]


@pytest.mark.extended
@pytest.mark.parametrize("suffix", ["", "-resumed"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounding_once_changes_no_bit(runs: Path, layout: str, suffix: str) -> None:
    always, once = (runs / f"{layout}-{kind}{suffix}" for kind in KINDS)
    assert len(results(always)) > 10 - 3 * bool(suffix)
    assert results(once) == results(always)
    expected, found = (torch.load(run / "weights.pt") for run in (always, once))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    if "bf16" in layout and not suffix:
        assert len(read_lines(once, "rollback")) == 1
