"""eole: ``eole train`` with a configuration file. Runs in the environment of that peer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import harness
import yaml

PAD = 0


def train(request: harness.Request, meter: harness.Meter) -> None:
    from eole.bin.main import main
    from eole.trainer import Trainer

    step = Trainer._train_step  # the extension point of its loop: one optimizer step

    def metered(self: Trainer, batches: list[dict[str, Any]], *arguments: Any, **options: Any) -> None:
        step(self, batches, *arguments, **options)
        for batch in batches:
            # Its source has no end of sentence; its target has a begin of sentence, which is not predicted.
            meter.count(batch["srclen"].sum() + len(batch["srclen"]), (batch["tgt"][:, 1:] != PAD).sum())
        meter.end_update(lambda _: self.model_saver.save(self.optim.training_step))

    Trainer._train_step = metered
    path = Path(request.work) / "config.yaml"
    path.write_text(yaml.safe_dump(build_config(request)), encoding="utf-8")
    sys.argv = ["eole", "train", "-config", str(path)]
    main()


def build_config(request: harness.Request) -> dict[str, Any]:
    text, vocabulary = Path(request.text), str(Path(request.text) / "vocabulary.txt")
    pairs = sum(1 for _ in request.lines("train.src"))
    return {
        "data": {
            "corpus_1": {"path_src": str(text / "train.src"), "path_tgt": str(text / "train.tgt")},
        },
        "src_vocab": vocabulary,
        "tgt_vocab": vocabulary,
        "share_vocab": True,
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "decoder_start_token": "<s>",
        "transforms": [],
        "report_every": 1_000_000,
        "seed": 1,
        "training": {
            "model_path": str(request.output),
            "world_size": 1,
            "gpu_ranks": [],
            "num_workers": 0,
            "bucket_size": pairs,  # sorted by length over the whole text: the least padding
            "batch_type": "tokens",
            "batch_size": request.tokens,
            "normalization": "tokens",
            "train_steps": 1_000_000,
            "save_checkpoint_steps": 1_000_000,
            "valid_steps": 1_000_000,
            "optim": "adam",
            "adam_beta2": 0.98,
            "learning_rate": request.noam_scale,
            "decay_method": "noam",
            "warmup_steps": request.warmup,
            "max_grad_norm": 0.0,
            "dropout": [request.dropout],
            "attention_dropout": [0.0],
            "label_smoothing": request.label_smoothing,
            "compute_dtype": request.precision,
            # bf16 weights and an Adam with compensated sums, which it offers beside autocasting: a little faster.
            "use_amp": request.precision == "fp32",
            "param_init_method": "xavier_uniform",
            "log_attention_entropy": False,
        },
        "model": {
            "architecture": "transformer",
            "layers": request.layers,
            "hidden_size": request.d_model,
            "heads": request.heads,
            "transformer_ff": request.d_ff,
            "position_encoding_type": "SinusoidalInterleaved",
            "embeddings": {"word_vec_size": request.d_model, "position_encoding": True},
            "add_ffnbias": True,
            "share_embeddings": True,
            "share_decoder_embeddings": True,
        },
    }


if __name__ == "__main__":
    harness.main(train)
