"""Synthetic training data: random pieces in sentences of realistic lengths."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import sentencepiece

from dstransformer.config import Config, load_config
from dstransformer.data import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Split, SplitWriter, Tokenizer
from dstransformer.data.loader import PairReader, UpdateLoader
from dstransformer.data.plan import build_budget
from dstransformer.data.windows import build_planner

PIECES = 8000

#: The sizes of :func:`load_sized`.
SIZES = ("tiny", "base")

_TINY = {"num_layers": 3, "d_model": 256, "d_ff": 1024, "num_heads": 4}


def load_sized(size: str, precision: str, *overrides: str, stage: str = "zero1") -> Config:
    """The preset ``base``, or ``tiny``: 3+3 layers of width 256 with 4 heads."""
    model = [f"model.{name}={value}" for name, value in _TINY.items()] if size == "tiny" else []
    return load_config("base", [*model, *overrides], [stage, precision])


def budget_of(tokens: int, micro_batches: int) -> list[str]:
    """Configuration overrides for updates of this many tokens on each side."""
    return [f"batch.src_tokens={tokens}", f"batch.tgt_tokens={tokens}", f"batch.micro_batches={micro_batches}"]


def sample_lengths(pairs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Source and target lengths in tokens, ``(pairs,)`` each, correlated, about as in WMT14: mean 30, maximum 256."""
    rng = np.random.default_rng(seed)
    src, tgt = np.empty(pairs, dtype=np.int32), np.empty(pairs, dtype=np.int32)
    for part in (slice(begin, begin + 1_000_000) for begin in range(0, pairs, 1_000_000)):
        lengths = rng.gamma(2.5, 12.0, len(src[part]))
        src[part] = np.clip(lengths, 1, 256)
        tgt[part] = np.clip(lengths * rng.normal(1.0, 0.15, len(lengths)), 1, 256)
    return src, tgt


def write_split(folder: Path, pairs: int, seed: int = 0, shard_rows: int = 1_000_000) -> Split:
    """Write a training split of random pieces, without a tokenizer."""
    rng = np.random.default_rng(seed)
    writer = SplitWriter(folder, vocab_size=PIECES, shard_rows=shard_rows, has_text=False)
    sides = []
    for lengths in sample_lengths(pairs, seed):
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int32))).astype(np.int32)
        sides.append(pa.ListArray.from_arrays(offsets, rng.integers(4, PIECES, offsets[-1], dtype=np.int32)))
    writer.write(pa.table(sides, names=["src", "tgt"]))
    return Split(folder, writer.close())


def train_tokenizer() -> Tokenizer:
    """Train a tiny tokenizer, for code that requires one."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a small text, with words in it"]),
        model_writer=model,
        model_type="bpe",
        vocab_size=290,
        byte_fallback=True,
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        minloglevel=2,
    )
    return Tokenizer(model.getvalue())


def build_loader(split: Split, config: Config, rank: int = 0, world_size: int = 1) -> UpdateLoader:
    """Build the loader as the trainer does."""
    planner = build_planner(split, build_budget(config.batch), config.training.seed, None, window_pairs=0)
    return UpdateLoader(
        planner,
        PairReader(split),
        rank=rank,
        world_size=world_size,
        prefetch=config.training.prefetch,
        pin_memory=False,
    )
