"""Trainings in several layouts by ``tests/distributed/worker.py``, all in the same processes, and their weights."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from support.processes.forks import REPOSITORY
from support.processes.ranks import run_ranks

WORKER = REPOSITORY / "tests" / "distributed" / "worker.py"

#: What the worker trains; it says which keys there are.
Case = dict[str, Any]


def case(name: str, *overrides: str, fragments: Sequence[str] = ("zero1", "fp32"), **more: Any) -> Case:
    """A training without a final bundle, unless ``more`` says otherwise."""
    return {"name": name, "overrides": list(overrides), "fragments": list(fragments), "final": False, **more}


def train_cases(out: Path, corpus: Path, cases: Sequence[Case], ranks: int = 2, **variables: str) -> str:
    """Train cases into folders of ``out`` by their names; return what the ranks printed."""
    (out / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(ranks, str(WORKER), str(out / "cases.json"), str(corpus), str(out), extra=variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def write_scattered(folder: Path, **more: Any) -> str:
    """Write a fragment of stage 3 by which even the smallest weight is partitioned; return its path."""
    path = folder / "scattered.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, **more}}))
    return str(path)


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights at the end of a case."""
    loaded: dict[str, torch.Tensor] = torch.load(run / "weights.pt")
    return loaded


def assert_same_weights(run: Path, other: Path) -> None:
    """Check that two cases ended with the same weights, bit for bit."""
    torch.testing.assert_close(final_weights(run), final_weights(other), rtol=0, atol=0)


def outcome(run: Path) -> dict[str, Any]:
    """What the worker says of the end of a case."""
    said: dict[str, Any] = json.loads((run / "outcome.json").read_text())
    return said


class Layout(NamedTuple):
    """How a run is computed."""

    ranks: int
    stage: int
    precision: str

    def __str__(self) -> str:
        return f"{self.ranks}x-zero{self.stage}-{self.precision}"


def train_layouts(
    out: Path,
    corpus: Path,
    overrides: Sequence[str],
    layouts: Sequence[Layout],
    pairs: Sequence[tuple[Layout, Layout]],
    *,
    saved_at: int,
    infinite: int | None = None,
    stage_3: str = "zero3",
) -> None:
    """Train a run in each layout, and one that goes on for each pair of target and source: ``TARGET-from-SOURCE``.

    Args:
        out: The folder of the runs.
        corpus: The corpus.
        overrides: Of all runs.
        layouts: The layouts.
        pairs: The layouts of runs that go on, and those of the runs from whose checkpoints they do.
        saved_at: The update of that checkpoint.
        infinite: Train each layout of two ranks, ``LAYOUT-infinite``, with an infinite gradient at this update, too.
        stage_3: The fragment for stage 3.
    """

    def of(layout: Layout, suffix: str = "", **more: Any) -> tuple[int, Case]:
        stage = stage_3 if layout.stage == 3 else f"zero{layout.stage}"
        return layout.ranks, case(f"{layout}{suffix}", *overrides, fragments=(stage, layout.precision), **more)

    whole = [of(layout) for layout in layouts]
    if infinite is not None:
        whole += [of(layout, "-infinite", infinite=[infinite]) for layout in layouts if layout.ranks == 2]
    step = f"checkpoints/step-{saved_at:08}"
    resumed = [of(target, f"-from-{source}", resume=f"{source}/{step}") for target, source in pairs]
    for cases, ranks in itertools.product((whole, resumed), sorted({layout.ranks for layout in layouts})):
        if chosen := [one for count, one in cases if count == ranks]:
            train_cases(out, corpus, chosen, ranks)
