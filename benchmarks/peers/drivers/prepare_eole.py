"""eole: from raw text to the batches of ``eole train``, by its transforms, without training. Runs in its environment.

Prints the seconds from the first batch asked for until every pair has come once, the pairs, and their tokens with one
end of sentence on each side.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from eole.bin.main import main
from eole.trainer import Trainer

PAD = 0


def prepare(options: dict[str, Any]) -> None:
    def pull(_: Trainer, train_iter: Any, *__: Any, **___: Any) -> None:
        began, pairs, tokens = time.perf_counter(), 0, 0
        for batch, _ in train_iter:
            pairs += len(batch["srclen"])
            # Its source has no end of sentence; its target has a begin of sentence as well.
            tokens += int(batch["srclen"].sum()) + len(batch["srclen"]) + int((batch["tgt"][:, 1:] != PAD).sum())
            if pairs >= options["pairs"]:
                break
        print(json.dumps({"seconds": time.perf_counter() - began, "pairs": pairs, "tokens": tokens}), flush=True)
        raise SystemExit

    Trainer.train = pull
    path = Path(options["work"]) / "config.yaml"
    path.write_text(yaml.safe_dump(build_config(options)), encoding="utf-8")
    sys.argv = ["eole", "train", "-config", str(path)]
    main()


def build_config(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": {
            "corpus_1": {
                "path_src": options["src"],
                "path_tgt": options["tgt"],
                "transforms": ["sentencepiece", "filtertoolong"],
            },
        },
        "transforms_configs": {
            "sentencepiece": {"src_subword_model": options["model"], "tgt_subword_model": options["model"]},
            "filtertoolong": {"src_seq_length": options["max_tokens"], "tgt_seq_length": options["max_tokens"]},
        },
        "src_vocab": options["vocabulary"],
        "tgt_vocab": options["vocabulary"],
        "share_vocab": True,
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "decoder_start_token": "<s>",
        "seed": 1,
        "training": {
            "model_path": f"{options['work']}/model",
            "world_size": 1,
            "gpu_ranks": [],
            "num_workers": options["workers"],
            # A bucket is a worker's share of the text: its readers go round, and a larger one would hold pairs twice.
            "bucket_size": options["pairs"] // options["workers"],
            "batch_type": "tokens",
            "batch_size": 4096,
            "train_steps": 1_000_000,
        },
        "model": {"architecture": "transformer", "layers": 1, "hidden_size": 64, "heads": 2, "transformer_ff": 64},
    }


if __name__ == "__main__":
    prepare(json.loads(sys.argv[1]))
