"""What only a CUDA device can show: the varlen kernel against the padded product, and training on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.launching import run_dst
from support.packed import VOCAB, draw_pairs, model_logits, tiny_config
from support.runs import TINY

from dstransformer.model import Transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changes", [{}, {"d_k": 16, "d_v": 16}, {"d_k": 4, "d_v": 16}], ids=["8", "16", "4-16"])
def test_varlen_equals_padded(dtype: torch.dtype, changes: dict[str, int]) -> None:
    pairs = [(src.cuda(), tgt.cuda()) for src, tgt in draw_pairs()]
    torch.manual_seed(1)
    padded = Transformer(tiny_config(**changes), VOCAB, backend="padded").cuda().eval()
    varlen = Transformer(tiny_config(**changes), VOCAB, backend="varlen").cuda().to(dtype).eval()
    varlen.load_state_dict(padded.state_dict())
    expected = model_logits(padded, pairs)
    torch.testing.assert_close(model_logits(varlen, pairs).float(), expected, rtol=0.05, atol=0.1)
    half = padded.to(dtype)
    torch.testing.assert_close(model_logits(varlen, pairs), model_logits(half, pairs), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("fragments", [("zero1", "bf16"), ("zero2", "fp16"), ("zero3", "bf16"), ("zero1", "fp32")])
def test_it_trains_on_the_gpu(toy_corpus: Path, tmp_path: Path, fragments: tuple[str, str]) -> None:
    run = tmp_path / "run"
    options = ["--corpus", str(toy_corpus), "--run", str(run), "--ds", *fragments]
    done = run_dst("train", "toy", *options, "--set", *TINY, "training.max_updates=30")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]
