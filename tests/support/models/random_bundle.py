"""Bundles with random weights, for tests of exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dstransformer.data import Tokenizer
from dstransformer.model import Transformer, save_bundle
from support.data.corpora import train_model
from support.models.packed import load_tiny, overriding


def random_bundle(
    folder: Path, tokenizer: Tokenizer | None = None, provenance: dict[str, Any] | None = None, **model_changes: Any
) -> Path:
    """A bundle with random weights, biases and norms."""
    config = load_tiny(*overriding(**{"vocab_multiple": 16, **model_changes}))
    tokenizer = tokenizer or Tokenizer(train_model())
    torch.manual_seed(3)
    model = Transformer(config.model, tokenizer.vocab_size, src_vocab_size=tokenizer.src.vocab_size)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.copy_(torch.randn_like(weight) * 0.3 + ("norm" in name and name.endswith("weight")))
    save_bundle(
        folder,
        model.state_dict(),
        config,
        tokenizer,
        {"step": 0, "src_lang": "en", "tgt_lang": "de"} | (provenance or {}),
    )
    return folder
