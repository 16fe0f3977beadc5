"""``batch.micro_batches: auto`` on real ranks: the number that is found by trial, and resuming with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.processes.ranks import run_dst_ranks
from support.tiers import combinations
from support.training.cases import Case, assert_same_weights, case, outcome, train_cases, write_scattered
from support.training.runs import TINY, losses, trace

from dstransformer.config import read_config
from dstransformer.model import open_bundle

pytestmark = pytest.mark.slow

STAGES = (0, 1, 2, 3)
PRECISIONS = ("fp32", "bf16", "fp16")
LAYOUTS = combinations(STAGES, PRECISIONS, first_tier={(0, "fp32"), (1, "bf16"), (2, "fp16"), (3, "fp32")})

#: Source tokens for which one rank has memory: those of a micro-batch if an update of 600 has six, not if it has four.
ROOM = 130

SAVED_AT, UPDATES = 4, 8
CHANGES = [f"training.max_updates={UPDATES}", f"checkpoint.every_updates={SAVED_AT}", "model.dropout=0.1"]


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory, *, extended: bool) -> Path:
    """Runs whose number is found by trial, and runs that were given it."""
    out = tmp_path_factory.mktemp("trials")
    stage_3 = write_scattered(out)
    cases: list[Case] = []
    for layout in LAYOUTS:
        stage, precision = layout.values
        if extended or not layout.marks:
            fragments = (stage_3 if stage == 3 else f"zero{stage}", precision)
            for name, number, more in (("trial", 2, {"room": ROOM}), ("given", 6, {})):
                overrides = ("training.max_updates=4", "model.dropout=0.1", "training.bpe_dropout=0.1")
                overrides += ("optimizer.ema_decay=0.6", f"batch.micro_batches={number}")
                cases.append(case(f"{name}-{stage}-{precision}", *overrides, fragments=fragments, **more))
    train_cases(out, toy_corpus, cases)
    return out


@pytest.mark.parametrize(("stage", "precision"), LAYOUTS)
def test_a_run_whose_number_was_found_is_bit_for_bit_the_run_that_was_given_it(
    runs: Path, stage: int, precision: str
) -> None:
    """One rank runs out of memory in the first two attempts, and the other takes part in the third."""
    found, given = (runs / f"{name}-{stage}-{precision}" for name in ("trial", "given"))
    assert outcome(found)["micro_batches"] == 6
    for key in ("loss", "lr", "grad_norm", "loss_scale", "skipped_share"):
        assert trace(found, key) == trace(given, key)
    assert_same_weights(found, given)


def train(corpus: Path, run: Path, ranks: int, *options: str) -> str:
    """Train and return what the run printed."""
    overrides = [*TINY, *CHANGES, "batch.micro_batches=auto"]
    paths = ["--corpus", str(corpus), "--run", str(run)]
    done = run_dst_ranks(ranks, "train", "toy", *paths, *options, "--ds", "zero1", "fp32", "--set", *overrides)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_the_number_is_recorded_and_kept_where_the_processes_divide_it(toy_corpus: Path, tmp_path: Path) -> None:
    whole, again, on_three = (tmp_path / name for name in ("whole", "again", "on_three"))
    assert "batch.micro_batches is 2, the least that fits, by trial" in train(toy_corpus, whole, 2)
    saved = whole / "checkpoints" / f"step-{SAVED_AT:08}"
    assert read_config(whole / "config.yaml").batch.micro_batches == 2
    bundles = [open_bundle(folder / "bundle") for folder in (saved, whole)]
    assert [bundle.training_config().batch.micro_batches for bundle in bundles] == [2, 2]

    resumed = train(toy_corpus, again, 2, "--resume", str(saved))
    assert "batch.micro_batches is 2, as its checkpoint has" in resumed
    assert "by trial" not in resumed
    assert losses(again) == losses(whole)[SAVED_AT:]
    ends = [load_file(run / "bundle" / "model.safetensors") for run in (whole, again)]
    torch.testing.assert_close(*ends, rtol=0, atol=0)

    tried = train(toy_corpus, on_three, 3, "--resume", str(saved))
    assert tried.count("batch.micro_batches is 3, the least that fits, by trial; it was 2") == 1
    assert read_config(on_three / "config.yaml").batch.micro_batches == 3
