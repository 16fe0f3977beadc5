"""Sockeye 3: ``sockeye.train`` with its options. Runs in the environment of that peer.

Its ``--amp`` is written for CUDA; on a CPU it would warn and train in fp32. So for bf16 the two names of
``torch.cuda.amp`` that it calls stand for those of the CPU here: autocasting to bf16, and a loss scale that bf16 has no
need of.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from pathlib import Path

import harness
import torch
from sockeye import constants as C
from sockeye import train as sockeye_train
from sockeye.data_io import Batch
from sockeye.training import EarlyStoppingTrainer

PAD = 0


def train(request: harness.Request, meter: harness.Meter) -> None:
    step = EarlyStoppingTrainer._step  # one batch, here one optimizer step

    def metered(self: EarlyStoppingTrainer, batch: Batch) -> bool:
        stepped: bool = step(self, batch)
        labels = batch.labels["target_label"]
        meter.count((batch.source != PAD).sum(), (labels != PAD).sum())
        # Beside its configuration and vocabularies, where ``sockeye.translate`` looks for it.
        meter.end_update(lambda folder: self.sockeye_model.save_parameters(f"{folder}/{C.PARAMS_BEST_NAME}"))
        return stepped

    EarlyStoppingTrainer._step = metered
    if request.precision == "bf16":
        torch.cuda.amp.autocast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
        torch.cuda.amp.GradScaler = functools.partial(torch.amp.GradScaler, "cpu", enabled=False)
    sys.argv = ["sockeye-train", *build_arguments(request)]
    sockeye_train.main()


def build_arguments(request: harness.Request) -> list[str]:
    text = Path(request.text)
    vocabulary = Path(request.work) / "vocabulary.json"
    vocabulary.write_text(json.dumps({piece: number for number, piece in enumerate(request.vocabulary())}))
    options = {
        "source": text / "train.src",
        "target": text / "train.tgt",
        "validation-source": text / "valid.src",
        "validation-target": text / "valid.tgt",
        "source-vocab": vocabulary,
        "target-vocab": vocabulary,
        "output": request.output,
        "num-layers": request.layers,
        "transformer-model-size": request.d_model,
        "transformer-attention-heads": request.heads,
        "transformer-feed-forward-num-hidden": request.d_ff,
        "weight-tying-type": "src_trg_softmax",
        "embed-dropout": request.dropout,
        "transformer-dropout-prepost": request.dropout,
        "transformer-dropout-attention": 0.0,
        "transformer-dropout-act": 0.0,
        "label-smoothing": request.label_smoothing,
        "batch-type": "word",
        "batch-size": request.tokens,
        "optimizer": "adam",
        "optimizer-betas": "0.9:0.98",
        # Its schedule falls from warmup^-0.5 of this.
        "initial-learning-rate": request.peak_rate * math.sqrt(request.warmup),
        "learning-rate-scheduler-type": "inv-sqrt-decay",
        "learning-rate-warmup": request.warmup,
        "gradient-clipping-type": "none",
        "checkpoint-interval": 1_000_000,
        "max-updates": 1_000_000,
        "seed": 1,
    }
    flags = ["--shared-vocab", "--use-cpu", "--no-logfile", *(["--amp"] if request.precision == "bf16" else [])]
    return [text for name, value in options.items() for text in (f"--{name}", str(value))] + flags


if __name__ == "__main__":
    harness.main(train)
