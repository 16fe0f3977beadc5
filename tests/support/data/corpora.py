"""A small tokenizer, and small corpora that use it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sentencepiece

from dstransformer.data import (
    CleaningReport,
    Corpus,
    CorpusWriter,
    Manifest,
    SourceInfo,
    Tokenizer,
    TokenizerInfo,
)
from support.processes.launching import finish, forked

Rows = list[tuple[list[int], list[int]]]

TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Two men are talking in front of a small house.",
    "Zwei Männer unterhalten sich vor einem kleinen Haus.",
]


def train_model(texts: Sequence[str] = TEXT, **changes: Any) -> bytes:
    model = io.BytesIO()
    options: dict[str, Any] = {
        "vocab_size": 340,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "nfkc",
        "character_coverage": 1.0,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": 2,
        "eos_id": 3,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **(options | changes))
    return model.getvalue()


@cache
def small_tokenizer() -> Tokenizer:
    """A BPE tokenizer trained on the sentences in `TEXT`."""
    return Tokenizer(train_model())


def id_table(rows: Rows) -> pa.Table:
    ids = pa.list_(pa.int64())
    return pa.table({"src": pa.array([s for s, _ in rows], ids), "tgt": pa.array([t for _, t in rows], ids)})


def write_corpus(folder: Path, rows: Rows) -> Path:
    """Write a corpus of the given training rows, three per shard, with the sentences in `TEXT` as validation set."""
    writer = CorpusWriter(folder, tokenizer := small_tokenizer(), shard_rows=3)
    train = writer.split("train", has_text=False)
    train.write(id_table(rows))
    validation = writer.split("validation", has_text=True)
    src, tgt = TEXT[0::2], TEXT[1::2]
    ids = id_table(list(zip(tokenizer.encode(src), tokenizer.encode(tgt), strict=True)))
    validation.write(ids.append_column("src_text", [src]).append_column("tgt_text", [tgt]))
    manifest = Manifest(
        build_key="key",
        src_lang="en",
        tgt_lang="de",
        tokenizer=TokenizerInfo(kind="bpe", vocab_size=tokenizer.vocab_size, sha256=tokenizer.sha256),
        splits={"train": train.close(), "validation": validation.close()},
        sources=(SourceInfo(name="files", revision=None, inputs=()),),
        cleaning=CleaningReport(read=len(rows), kept=len(rows), dropped={}),
        options={},
        command="dst-prep build",
        versions={},
    )
    writer.close(manifest)
    return folder


def build_toy(out: Path, pairs: int, *more: str, vocab_size: int | None = 400) -> Path:
    """Build a corpus of the embedded grammar with ``dst-prep``: 40 validation pairs and 40 test pairs.

    ``vocab_size`` is None if ``more`` names tokenizers.
    """
    options = ["--source", "toy", "--pairs", str(pairs), "--valid-size", "40", "--test-size", "40"]
    options += [] if vocab_size is None else ["--vocab-size", str(vocab_size)]
    options += ["--workers", "1", "--out", str(out), *more]
    with forked(["-m", "data_prep", "build", *options]) as process:
        printed = finish(process)
        assert process.returncode == 0, printed
    return out


def toy_sentences(corpus: Path, number: int, side: str = "src") -> list[str]:
    """The first sentences of a side of a corpus's training pairs."""
    opened = Corpus.open(corpus)
    src, src_lengths, tgt, tgt_lengths, *_ = opened.split("train").gather(list(range(number)))  # type: ignore[arg-type]
    ids, lengths = (src, src_lengths) if side == "src" else (tgt, tgt_lengths)
    ends = np.cumsum(lengths).tolist()
    rows = [ids[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]
    return opened.tokenizer.decode(rows)
