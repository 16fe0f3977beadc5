"""Runs with ``batch.micro_batches: auto`` on real ranks: the number that they record, and resuming them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.processes.ranks import run_dst_ranks
from support.training.runs import TINY, losses

from dstransformer.config import read_config
from dstransformer.model import open_bundle

SAVED_AT, UPDATES = 4, 8
CHANGES = [f"training.max_updates={UPDATES}", f"checkpoint.every_updates={SAVED_AT}", "model.dropout=0.1"]


def train(corpus: Path, run: Path, ranks: int, *options: str) -> str:
    """Train and return what the run printed."""
    overrides = [*TINY, *CHANGES, "batch.micro_batches=auto"]
    paths = ["--corpus", str(corpus), "--run", str(run)]
    done = run_dst_ranks(ranks, "train", "toy", *paths, *options, "--ds", "zero1", "fp32", "--set", *overrides)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.slow
def test_automatic_micro_batches_are_recorded_and_kept_where_the_processes_divide_them(
    toy_corpus: Path, tmp_path: Path
) -> None:
    whole, again, on_three = (tmp_path / name for name in ("whole", "again", "on_three"))
    printed = train(toy_corpus, whole, 2)
    assert "2 micro-batches an update, 1 for each process" in printed
    saved = whole / "checkpoints" / f"step-{SAVED_AT:08}"
    assert read_config(whole / "config.yaml").batch.micro_batches == 2
    bundles = [open_bundle(folder / "bundle") for folder in (saved, whole)]
    assert [bundle.training_config().batch.micro_batches for bundle in bundles] == [2, 2]

    train(toy_corpus, again, 2, "--resume", str(saved))
    assert losses(again) == losses(whole)[SAVED_AT:]
    ends = [load_file(run / "bundle" / "model.safetensors") for run in (whole, again)]
    torch.testing.assert_close(*ends, rtol=0, atol=0)

    printed = train(toy_corpus, on_three, 3, "--resume", str(saved))
    assert printed.count(f"from update {SAVED_AT + 1} on batch.micro_batches is 3; it was 2") == 1
    assert read_config(on_three / "config.yaml").batch.micro_batches == 3
