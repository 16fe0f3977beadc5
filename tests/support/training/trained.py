"""A small model that has learned the embedded grammar, trained in this process within seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dstransformer.data import Corpus
from dstransformer.data.links import LinkReader
from dstransformer.data.packing import pack_pairs
from dstransformer.model import Transformer, save_bundle
from dstransformer.model.loss import Objective
from support.models.packed import load_tiny, overriding


def trained_bundle(
    folder: Path,
    corpus: Path,
    *,
    updates: int = 250,
    guided: float = 0.0,
    sentences: int = 64,
    anneal: bool = False,
    **model_changes: Any,
) -> Path:
    """Train on a corpus and write a bundle.

    Args:
        folder: Where the bundle goes.
        corpus: The corpus.
        updates: Number of updates.
        guided: The weight of guided alignment.
        sentences: Sentence pairs of an update.
        anneal: Whether the learning rate falls to zero during the second half.
        model_changes: Values of the configuration's ``model``.
    """
    shape = {"d_model": 64, "d_ff": 128, "d_k": 16, "d_v": 16} | model_changes
    config = load_tiny("decoding.max_extra_tokens=10", f"loss.guided_alignment={guided}", *overriding(**shape))
    opened = Corpus.open(corpus)
    split = opened.split("train")
    torch.manual_seed(1)
    tokenizer = opened.tokenizer
    model = Transformer(config.model, tokenizer.vocab_size, src_vocab_size=tokenizer.src.vocab_size)
    objective = Objective(model, label_smoothing=0.1, guided_alignment=guided)
    reader = LinkReader(split, tokenizer) if guided else None
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    order = np.random.default_rng(1)
    for update in range(updates):
        rows = order.choice(len(split), sentences, replace=False)
        pairs = split.gather(rows)
        batch = pack_pairs(*pairs)
        if reader is not None:
            batch = batch._replace(links=reader.read(rows, pairs, pairs))
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (update + 1) / 50, *([2 * (1 - update / updates)] if anneal else []))
        optimizer.zero_grad()
        (objective(*batch).loss / len(batch.tgt_out)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    languages = {"src_lang": opened.manifest.src_lang, "tgt_lang": opened.manifest.tgt_lang}
    save_bundle(
        folder, model.state_dict(), config, opened.tokenizer, {"step": updates, "sources": ["toy"], **languages}
    )
    return folder
