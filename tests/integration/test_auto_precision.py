"""``auto_precision`` in a run: recorded as the precision it became, and kept when the run resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.processes.launching import run_dst
from support.training.runs import TINY

from dstransformer.config import read_config
from dstransformer.training.precision import native_precisions

pytestmark = pytest.mark.slow


def test_a_run_that_began_in_another_precision_than_the_hardware_suggests_keeps_it(
    toy_corpus: Path, tmp_path: Path
) -> None:
    best = "bf16" if "bf16" in native_precisions(torch.device("cpu")) else "fp32"
    other = {"bf16": "fp32", "fp32": "bf16"}[best]

    def train(precision: str, updates: int) -> str:
        options = ["--corpus", str(toy_corpus), "--run", str(tmp_path / precision), "--ds", "zero1", precision]
        done = run_dst("train", "toy", *options, "--set", *TINY, f"training.max_updates={updates}")
        assert done.returncode == 0, done.stderr
        return done.stderr

    def recorded(run: str) -> list[str]:
        return read_config(tmp_path / run / "config.yaml").deepspeed

    assert f"precision {best}, " in train("auto_precision", 1)
    assert recorded("auto_precision") == ["zero1", best]
    train(other, 1)
    (tmp_path / "auto_precision").rename(tmp_path / "first")
    (tmp_path / other).rename(tmp_path / "auto_precision")
    resumed = train("auto_precision", 2)
    assert f"precision {other}, as its checkpoint has; a new run would take {best} here" in resumed
    assert "resumed at update 1" in resumed
    assert "this run resumes with" not in resumed, "nothing differs"
    assert recorded("auto_precision") == ["zero1", other]
