"""Weights that are rounded before they are used train exactly as weights that are rounded at each use."""

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

#: At stage 3, where no matrix is whole on every rank.
GATHERED = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
GATHER_KINDS = ("rounded", "whole")


def train(out: Path, corpus: Path, cases: list[dict[str, Any]]) -> Path:
    (out / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(2, str(WORKER), str(out / "cases.json"), str(corpus), str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def gathered(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gathered")
    scattered = out / "scattered.json"
    scattered.write_text(json.dumps({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}))
    cases = [
        {
            "name": f"{precision}-{kind}",
            "overrides": [change for change in COMMON if "every_updates" not in change],
            "fragments": [str(scattered), precision],
            "gather_whole": kind == "whole",
            "final": False,
        }
        for precision in GATHERED
        for kind in GATHER_KINDS
    ]
    return train(out, toy_corpus, cases)


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
    return train(out, toy_corpus, cases)


def read_lines(run: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] in kinds]


def results(run: Path) -> list[tuple[float, ...]]:
    """Losses and gradient norms of all updates, and losses of all validations."""
    return [
        tuple(line[name] for name in ("step", "loss", "grad_norm", "nll") if name in line)
        for line in read_lines(run, "train", "valid")
    ]


def assert_same(run: Path, other: Path) -> None:
    assert results(run) == results(other)
    found, expected = (torch.load(folder / "weights.pt") for folder in (run, other))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.extended
@pytest.mark.parametrize("suffix", ["", "-resumed"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounding_once_changes_no_bit(runs: Path, layout: str, suffix: str) -> None:
    always, once = (runs / f"{layout}-{kind}{suffix}" for kind in KINDS)
    assert len(results(always)) > 10 - 3 * bool(suffix)
    assert_same(once, always)
    if "bf16" in layout and not suffix:
        assert len(read_lines(once, "rollback")) == 1


@pytest.mark.extended
@pytest.mark.parametrize("precision", GATHERED)
def test_matrices_that_travel_rounded_change_no_bit(gathered: Path, precision: str) -> None:
    """Neither do the weights lose precision: those of all ranks together are read in fp32."""
    rounded, whole = (gathered / f"{precision}-{kind}" for kind in GATHER_KINDS)
    assert len(results(whole)) > 10
    assert_same(rounded, whole)
    of_rounded, of_whole = (json.loads((run / "gathered.json").read_text()) for run in (rounded, whole))
    assert set(of_whole) == {"torch.float32"}
    assert set(of_rounded) == {"torch.float32", GATHERED[precision]}
    assert sum(of_rounded.values()) == sum(of_whole.values())
    assert of_rounded[GATHERED[precision]] > 0.5 * sum(of_whole.values())


@pytest.mark.extended
def test_gradients_travel_rounded_at_every_stage(toy_corpus: Path, tmp_path: Path) -> None:
    """Their rounding shows in the losses, and hardly."""
    common = {"overrides": ["training.max_updates=20", "model.num_layers=1"], "final": False}
    cases = [
        {"name": f"{stage}{'-'.join(['', *more])}", "fragments": [stage, "bf16", *more], **common}
        for stage in ("zero0", "zero1", "zero2", "zero3")
        for more in ([], ["bf16_gradients"])
    ]
    out = train(tmp_path, toy_corpus, cases)
    for stage in ("zero0", "zero1", "zero2", "zero3"):
        plain, rounded = (
            torch.tensor([line["loss"] for line in read_lines(out / name, "train")])
            for name in (stage, f"{stage}-bf16_gradients")
        )
        assert len(plain) == 20
        apart = (rounded - plain).abs()
        assert 0 < apart.max() < 0.02, stage
