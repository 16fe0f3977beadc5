"""``dst train --find-batch`` on real processes, with memory that is limited."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.processes.forks import environment
from support.processes.launching import run_command
from support.processes.ranks import run_dst_ranks
from support.training.runs import TINY

WIDE = [*TINY, "model.d_ff=8192", "training.max_updates=1"]  # an update of the whole corpus takes gigabytes
LIMIT = 2_000_000  # KiB of data


def limited(*arguments: str) -> tuple[int, str, str]:
    """Run ``dst`` in a process that may hold LIMIT of data."""
    command = f'ulimit -d {LIMIT} && exec "$@"'
    done = run_command(
        ["bash", "-c", command, "bash", sys.executable, "-m", "dstransformer", *arguments], env=environment()
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.extended
def test_the_batch_that_is_found_trains_within_the_limit(toy_corpus: Path, tmp_path: Path) -> None:
    run = ["train", "toy", "--corpus", str(toy_corpus), "--run", str(tmp_path / "run"), "--set", *WIDE]
    status, printed, errors = limited(*run, "--find-batch", "--json")
    assert status == 0, errors
    assert list(tmp_path.iterdir()) == []
    found = json.loads(printed)
    assert 0 < found["peak_gib"] <= found["usable_gib"] < LIMIT / 2**20
    assert not found["holds_all"]
    batch = [f"batch.{name}={found[name]}" for name in ("src_tokens", "tgt_tokens", "micro_batches")]
    status, _, errors = limited(*run, *batch)
    assert status == 0, errors
    larger = [f"batch.{name}={3 * found[name]}" for name in ("src_tokens", "tgt_tokens")]
    status, _, errors = limited(*run, "--run", str(tmp_path / "run"), *batch[2:], *larger)
    assert status != 0


def test_two_ranks_find_one_batch_and_write_nothing(toy_corpus: Path, tmp_path: Path) -> None:
    paths = ["--corpus", str(toy_corpus), "--run", str(tmp_path / "run")]
    done = run_dst_ranks(2, "train", "toy", *paths, "--find-batch", "--ds", "zero2", "fp32", "--set", *TINY)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("an update of the whole training split fits: a micro-batch of ")
    assert " on each of 2 processes, which takes " in lines[0]
    assert lines[-1].startswith("--set batch.src_tokens=")
    assert lines[-1].endswith(" batch.micro_batches=2")
    assert list(tmp_path.iterdir()) == []
