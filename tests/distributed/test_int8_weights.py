"""Training with 8-bit weights on real ranks: the same at every ZeRO stage and after a resume, and scored in 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.processes.ranks import run_ranks
from support.training.runs import TINY

from dstransformer.config import load_config
from dstransformer.data import Corpus
from dstransformer.data.batch import build_batch
from dstransformer.model import Transformer
from dstransformer.model.ops import int8_values

WORKER = Path(__file__).with_name("worker.py")
COMMON = ["training.max_updates=6", "checkpoint.every_updates=3", "checkpoint.keep_last=9", "model.num_layers=1"]
COMMON += ["model.dropout=0.1", "validation.every=3"]
EIGHT_BITS = [*COMMON, "training.int8_weights=true"]


def read_lines(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def losses(run: Path, kind: str = "train") -> list[float]:
    return [line["loss"] for line in read_lines(run, kind)]


@torch.no_grad()
def validation_loss(weights: dict[str, torch.Tensor], corpus_path: Path) -> float:
    corpus, config = Corpus.open(corpus_path), load_config("toy", [*TINY, *COMMON])
    split = corpus.split("validation")
    model = Transformer(config.model, corpus.tokenizer.vocab_size, config.loss.label_smoothing).eval()
    model.load_state_dict(weights)
    batch = build_batch(split, np.arange(len(split)))
    return float(model(*batch).loss) / batch.tgt_out.numel()


@pytest.mark.slow
def test_ranks_stages_and_resumes_compute_the_same(toy_corpus: Path, tmp_path: Path) -> None:
    """In two accumulation steps. In bf16, stage 3 must not quantise what it gathers rounded."""
    scattered = tmp_path / "scattered.json"
    scattered.write_text(json.dumps({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}))
    layouts = [("zero0", "fp32"), ("zero1", "fp32"), ("zero2", "bf16"), ("zero3", "fp32"), ("zero3", "bf16")]
    cases = [
        {
            "name": f"{stage}-{precision}",
            "overrides": [*EIGHT_BITS, f"training.activation_checkpointing={str(stage == 'zero3').lower()}"],
            "fragments": [str(scattered) if stage == "zero3" else stage, precision],
            "final": False,
        }
        for stage, precision in layouts
    ]
    cases.append({**cases[1], "name": "resumed", "resume": "zero1-fp32/checkpoints/step-00000003"})
    cases.append({**cases[1], "name": "plain", "overrides": COMMON})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(2, str(WORKER), str(tmp_path / "cases.json"), str(toy_corpus), str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    whole = tmp_path / "zero1-fp32"
    for other in ("zero0-fp32", "zero3-fp32"):
        assert losses(tmp_path / other) == pytest.approx(losses(whole), rel=1e-4)
    assert losses(tmp_path / "zero3-bf16") == pytest.approx(losses(tmp_path / "zero2-bf16"), rel=1e-3)
    assert losses(tmp_path / "resumed") == losses(whole)[3:]
    assert losses(tmp_path / "resumed", "valid") == losses(whole, "valid")[1:]
    first, plain = losses(whole)[0], losses(tmp_path / "plain")[0]
    assert 0 < abs(first - plain) < 0.02 * plain
    weights, resumed = (torch.load(tmp_path / name / "weights.pt") for name in ("zero1-fp32", "resumed"))
    torch.testing.assert_close(resumed, weights, rtol=0, atol=0)
    quantised = {name: int8_values(weight) if weight.dim() == 2 else weight for name, weight in weights.items()}
    scored = losses(whole, "valid")[-1]
    assert validation_loss(quantised, toy_corpus) == pytest.approx(scored, rel=1e-5)
    assert validation_loss(weights, toy_corpus) != pytest.approx(scored, rel=1e-5)
