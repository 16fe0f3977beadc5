"""Tokenizers from other tools: build a corpus with one, train on it, translate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import sentencepiece
from support.data.prep import WriteText, build, without_vocab
from support.processes.launching import run_dst
from support.training.runs import TINY

from dstransformer.data import Corpus

TINY = [*TINY, "training.max_updates=6", "checkpoint.every_updates=6"]


def test_a_tokenizer_with_standard_ids(tmp_path: Path, text: WriteText) -> None:
    options = without_vocab(text())
    lines = tmp_path / "text" / "tgt.txt"
    prefix = tmp_path / "spm"
    sentencepiece.SentencePieceTrainer.train(
        input=f"{lines},{tmp_path / 'text' / 'src.txt'}", model_prefix=str(prefix), vocab_size=90, minloglevel=2
    )
    model = prefix.with_suffix(".model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()) == (-1, 0, 1, 2)
    out = tmp_path / "corpus"
    assert build(*options, "--tokenizer-model", model, "--out", out) == 0
    sampled = run_dst(
        "train", "toy", "--corpus", str(out), "--run", str(tmp_path / "run"), "--dry-run", "--set", *TINY,
        "training.bpe_dropout=0.1",
    )  # fmt: skip
    assert sampled.returncode == 2
    assert "is a unigram model, not bpe: set training.bpe_dropout=0 (training.unigram_alpha is for" in sampled.stderr
    corpus = Corpus.open(out)
    assert (out / "tokenizer.model").read_bytes() == model.read_bytes()
    assert corpus.tokenizer.vocab_size == corpus.manifest.tokenizer.vocab_size == 91
    _, _, flat, lengths = corpus.split("train").gather(np.arange(600))
    rows = [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]
    assert corpus.tokenizer.decode(rows) == lines.read_text().splitlines()

    run = tmp_path / "run"
    command = ["train", "toy", "--corpus", str(out), "--run", str(run), "--set", *TINY]
    trained = run_dst(*command, "training.unigram_alpha=0.2")
    assert trained.returncode == 0, trained.stderr
    assert (run / "bundle" / "tokenizer.model").read_bytes() == model.read_bytes()
    held_out = tmp_path / "text" / "valid-src.txt"
    translated = run_dst("translate", str(run / "bundle"), str(held_out))
    assert translated.returncode == 0, translated.stderr
    assert len(translated.stdout.splitlines()) == 30
