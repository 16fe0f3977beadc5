"""Tiny training runs, and reading their results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Overrides of the preset ``toy`` for a model that trains tens of updates per second on one core.
TINY = [
    "model.d_model=32",
    "model.d_ff=64",
    "model.num_heads=2",
    "model.d_k=16",
    "model.d_v=16",
    "model.dropout=0.0",
    "batch.src_tokens=600",
    "batch.tgt_tokens=600",
    "batch.micro_batches=4",
    "schedule.warmup_steps=40",
    "training.log_every=1",
    "validation.every=0",
    "validation.bleu_sentences=4",
    "validation.final_sentences=4",
    "checkpoint.every_updates=0",
    "checkpoint.keep_last=3",
    "checkpoint.average_last=1",
    "decoding.beam_size=1",
    "decoding.max_extra_tokens=2",
    "tracking.enabled=false",
]

#: Overrides of the preset ``toy`` for a whole run of twelve updates with three checkpoints.
TWELVE_UPDATES = [
    "model.d_model=32",
    "model.d_ff=64",
    "model.num_heads=2",
    "model.d_k=16",
    "model.d_v=16",
    "batch.src_tokens=1200",
    "batch.tgt_tokens=1200",
    "schedule.warmup_steps=4",
    "training.log_every=2",
    "training.max_updates=12",
    "validation.every=6",
    "validation.bleu_sentences=6",
    "checkpoint.every_updates=4",
    "decoding.beam_size=2",
    "decoding.max_extra_tokens=5",
]


def train_options(corpus: Path, run: Path, *overrides: str) -> list[str]:
    """The arguments of ``dst`` for such a run."""
    return ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--set", *TWELVE_UPDATES, *overrides]


#: Further overrides of the plain run: four checkpoints, of which the first is in the warm-up.
PLAIN = ["schedule.warmup_steps=5", "checkpoint.every_updates=3", "checkpoint.keep_last=4", "checkpoint.average_last=4"]


def plain_options(corpus: Path, run: Path, *overrides: str) -> list[str]:
    """The arguments of ``dst`` for the plain run."""
    return train_options(corpus, run, *PLAIN, *overrides)


def records(run: Path, *kinds: str) -> list[dict[str, Any]]:
    """The lines of these kinds in the metrics of a run."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] in kinds]


def trace(run: Path, key: str) -> list[Any]:
    """A metric of each training update that a run logged."""
    return [line[key] for line in records(run, "train")]


def losses(run: Path) -> list[float]:
    """The training losses logged by a run."""
    return trace(run, "loss")


def latest_state(run: Path) -> dict[str, int | str]:
    """The training state in the newest checkpoint of a run."""
    checkpoints = run / "checkpoints"
    manifest = checkpoints / (checkpoints / "latest").read_text().strip() / "manifest.json"
    state: dict[str, int | str] = json.loads(manifest.read_text())["state"]
    return state
