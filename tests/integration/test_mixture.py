"""Training on a corpus of several sources: the mixture decides the pairs of an epoch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.data.prep import build
from support.processes.launching import run_dst
from support.training.runs import TINY, losses

RECIPE = """
sources:
  first: {source: toy, pairs: 600, valid_size: 20, test_size: 20}
  second: {source: toy, pairs: 300, seed: 2, held_out: false, tag: <second>, weight: 0.5}
vocab: {vocab_size: 500}
"""


@pytest.mark.slow
def test_a_run_uses_the_mixture_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert build(tmp_path / "recipe.yaml", "--out", tmp_path / "corpus") == 0
    options = ["train", "toy", "--corpus", str(tmp_path / "corpus"), "--run", str(tmp_path / "run"), "--ds", "zero0"]
    options += ["fp32", "--json", "--set", *TINY, "tracking.enabled=false"]

    def estimated(*more: str) -> int:
        done = run_dst(*options, *more, "--dry-run")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["estimate"]["pairs"])

    assert estimated() == 600 + 150
    second = "training.mixture=[{epochs: 1, weights: {first: 1}}, {weights: {first: 1, second: 2}}]"
    assert estimated(second) == 600
    done = run_dst(*options, second, "training.max_updates=2")
    assert done.returncode == 0, done.stderr
    done = run_dst(*options, "training.max_updates=4")
    assert done.returncode == 2
    assert "training.mixture is []" in done.stderr
    assert done.stderr.count("\n") == 1
    done = run_dst(*options, second, "training.max_updates=4")
    assert done.returncode == 0, done.stderr
    assert len(losses(tmp_path / "run")) == 4
    done = run_dst(*options, "training.mixture=[{weights: {third: 1}}]")
    assert "names the source 'third', which the corpus does not have; it has first, second" in done.stderr
