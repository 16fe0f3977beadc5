"""A tiny bundle whose attention is uneven, and the view of a made-up sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dstransformer.config import ModelConfig
from dstransformer.extras.paper.attention_pictures import View
from dstransformer.model import Transformer, save_bundle
from support.data.corpora import small_tokenizer
from support.models.packed import load_tiny, overriding


def save_tiny_bundle(
    folder: Path, overrides: tuple[str, ...] = (), *, scale: float = 1.0, **model_changes: Any
) -> Path:
    """Save a bundle of 3 layers with 4 heads, whose random weights are multiplied by ``scale``."""
    config = load_tiny("decoding.max_extra_tokens=6", *overrides, *overriding(num_layers=3, **model_changes))
    weights = {name: weight * scale for name, weight in random_model(config.model).state_dict().items()}
    save_bundle(folder, weights, config, small_tokenizer(), {"step": 0})
    return folder


def random_model(config: ModelConfig, vocab_size: int | None = None) -> Transformer:
    """A model with larger weights than initial ones, so that its attention is far from uniform."""
    torch.manual_seed(3)
    model = Transformer(config, vocab_size or small_tokenizer().vocab_size).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attention" in name and parameter.dim() == 2:
                parameter.mul_(3.0)
            elif name.endswith("bias"):
                parameter.normal_()
    return model


def random_view(queries: tuple[str, ...], keys: tuple[str, ...], *, kind: str = "cross", **changes: Any) -> View:
    """A view of 2 layers with 3 heads and random weights."""
    scores = np.random.default_rng(5).normal(0.0, 2.0, (2, 3, len(queries), len(keys)))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return View(kind, queries, keys, weights.astype(np.float32), **changes)
