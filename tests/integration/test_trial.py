"""``batch.micro_batches: auto`` where memory runs out: in a process with little of it, and where nothing ever fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.forks import environment
from support.processes.launching import run_command
from support.training.runs import TINY

from dstransformer.config import read_config

pytestmark = pytest.mark.slow

#: An update of the whole corpus, which takes gigabytes in one micro-batch.
WIDE = [
    *TINY, "model.d_ff=8192", "training.max_updates=1", "batch.micro_batches=auto", "batch.src_tokens=20000",
    "batch.tgt_tokens=20000",
]  # fmt: skip
LIMIT = 2_000_000  # KiB of data

#: ``dst`` on a device that has no memory for a training.
FULL = """
import sys, torch
from dstransformer.cli import main
from dstransformer.model import Transformer
def forward(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")
Transformer.forward = forward
sys.exit(main(sys.argv[1:]))
"""


def train_with_little_memory(corpus: Path, run: Path, *changes: str) -> subprocess.CompletedProcess[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--set", *WIDE, *changes]
    command = ["bash", "-c", f'ulimit -d {LIMIT} && exec "$@"', "bash", sys.executable, "-m", "dstransformer"]
    return run_command([*command, *options], env=environment())


def test_a_run_that_runs_out_of_memory_takes_more_micro_batches(toy_corpus: Path, tmp_path: Path) -> None:
    done = train_with_little_memory(toy_corpus, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    found = read_config(tmp_path / "run" / "config.yaml").batch.micro_batch_count
    assert found > 1
    assert [f"batch.micro_batches = {number}" in done.stderr for number in range(1, found + 1)] == [
        *[True] * (found - 1), False
    ]  # fmt: skip


@pytest.mark.parametrize(("number", "status"), [("auto", 2), ("4", 1)])
def test_a_run_that_never_fits_ends_with_advice(toy_corpus: Path, tmp_path: Path, number: str, status: int) -> None:
    program = tmp_path / "full.py"
    program.write_text(FULL)
    options = ["train", "toy", "--corpus", str(toy_corpus), "--run", str(tmp_path / "run"), "--set", *TINY]
    done = run_command([sys.executable, str(program), *options, f"batch.micro_batches={number}"], env=environment())
    assert done.returncode == status, done.stderr
    assert "batch.micro_batches" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()
