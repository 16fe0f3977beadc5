"""``auto_precision`` in a run: recorded as the precision it became, and kept when the run resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.processes.launching import run_dst
from support.processes.ranks import run_ranks
from support.training.runs import TINY

from dstransformer.config import read_config
from dstransformer.training.facts import native_precisions

pytestmark = pytest.mark.slow

#: ``dst`` on a cluster whose first rank has bf16 instructions, while the second has none.
MIXED = """
import os, sys
from dstransformer.cli import main
from dstransformer.training import facts
flags = {"avx512_bf16"} if os.environ["RANK"] == "0" else {"avx2"}
facts.processor_flags = lambda: frozenset(flags)
sys.exit(main(sys.argv[1:]))
"""


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


def test_ranks_on_different_hardware_train_in_one_precision(toy_corpus: Path, tmp_path: Path) -> None:
    program, run = tmp_path / "mixed.py", tmp_path / "run"
    program.write_text(MIXED)
    options = ["--corpus", str(toy_corpus), "--run", str(run), "--ds", "zero1", "auto_precision"]
    done = run_ranks(2, str(program), "train", "toy", *options, "--set", *TINY, "training.max_updates=1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("precision fp32, as not every device here has instructions for bf16") == 1
    assert read_config(run / "config.yaml").deepspeed == ["zero1", "fp32"]
