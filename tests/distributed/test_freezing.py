"""Frozen parts of the model, with real ranks at every ZeRO stage, with Adam and with Muon, and after resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.training.cases import case, final_weights, train_cases, write_scattered
from support.training.runs import TINY

from dstransformer.config import load_config
from dstransformer.data import Corpus
from dstransformer.errors import ConfigError
from dstransformer.model import Transformer
from dstransformer.training.optim import is_frozen

PARTS = ["embedding", "encoder", "decoder.0"]
COMMON = [
    f"training.freeze=[{', '.join(PARTS)}]", "model.dropout=0.1", "training.max_updates=4", "schedule.warmup_steps=2",
    "optimizer.ema_decay=0.5", "optimizer.clip_norm=1.0", "checkpoint.every_updates=2", "model.positions=learned",
    "model.max_positions=128",
]  # fmt: skip
CASES = {
    "zero0-fp32": ("zero0", "fp32"),
    "zero1-bf16": ("zero1", "bf16"),
    "zero2-fp16": ("zero2", "fp16"),
    "zero3-fp32": ("", "fp32"),
    "zero1-muon": ("zero1", "fp32"),
    "zero3-resumed": ("", "fp32"),
}


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("freezing")
    scattered = write_scattered(out)
    cases = []
    for name, (stage, precision) in CASES.items():
        more = {"resume": "zero2-fp16/checkpoints/step-00000002"} if "resumed" in name else {}
        muon = ["optimizer.name=muon"] if "muon" in name else []
        cases.append(case(name, *COMMON, *muon, fragments=(stage or scattered, precision), **more))
    train_cases(out, toy_corpus, cases)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_frozen_weights_stay_bit_for_bit_and_all_others_are_trained(runs: Path, toy_corpus: Path, name: str) -> None:
    config = load_config("toy", [*TINY, *COMMON])
    torch.manual_seed(config.training.seed)
    vocabulary = Corpus.open(toy_corpus, verify=False).tokenizer.vocab_size
    initial = dict(Transformer(config.model, vocabulary, "padded").named_parameters())
    final = final_weights(runs / name)
    unchanged = {each for each, weight in final.items() if torch.equal(weight, initial[each])}
    assert unchanged == {each for each in initial if is_frozen(each, PARTS)}
    assert {"embedding.weight", "tgt_input.positions.weight", "encoder.1.feed_forward.inner.weight"} <= unchanged
    assert "decoder.1.feed_forward.inner.weight" not in unchanged


@pytest.mark.parametrize(("overrides", "message"), [
    (["training.freeze=[encoder.2]"], "no part 'encoder.2'"),
    (["training.freeze=[softmax]"], "no part 'softmax'"),
    (["training.freeze=[encoder]", "optimizer.weight_decay=0.1"], "frozen weights would decay"),
    (["training.freeze=[embedding, encoder, decoder.0, decoder.1]"], "every part is frozen"),
])  # fmt: skip
def test_what_cannot_be_frozen_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("toy", overrides)
