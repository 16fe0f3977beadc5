"""Small architectures and packed sentences for the tests of the model."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dstransformer.config import Config, ModelConfig, load_config
from dstransformer.data.packing import Packing
from dstransformer.model import Transformer
from dstransformer.model.loss import Objective

VOCAB = 40


#: A small architecture without dropout.
TINY = {"num_layers": 2, "d_model": 32, "d_ff": 48, "num_heads": 4, "d_k": 8, "d_v": 8, "dropout": 0.0}


@cache
def load_tiny(*overrides: str) -> Config:
    """``base`` with that architecture, loaded and checked as a user's configuration is."""
    return load_config("base", [*overriding(**TINY), *overrides])


def overriding(**changes: Any) -> list[str]:
    """The overrides that set these values of ``model``."""
    return [f"model.{key}={json.dumps(value)}" for key, value in changes.items()]


def tiny_config(**changes: Any) -> ModelConfig:
    """The small architecture; keyword arguments override single values."""
    return load_tiny(*overriding(**changes)).model


def draw_pairs(lengths: tuple[tuple[int, int], ...] = ((5, 7), (1, 3), (9, 2), (4, 4))) -> list[tuple[Tensor, Tensor]]:
    """Random sentence pairs with these source and target lengths."""
    generator = torch.Generator().manual_seed(5)

    def sentence(length: int) -> Tensor:
        return torch.randint(4, VOCAB, (length,), generator=generator)

    return [(sentence(a), sentence(b)) for a, b in lengths]


def pack(sentences: list[Tensor]) -> tuple[Tensor, Packing]:
    """Sentences laid end to end, and where each begins."""
    return torch.cat(sentences), Packing.from_lengths([len(ids) for ids in sentences]).to(sentences[0].device)


def model_logits(model: Transformer, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Logits of every target position of the packed batch, ``(tgt_tokens, rows)``."""
    tgt, tgt_packing = pack([t for _, t in pairs])
    hidden = model(*pack([s for s, _ in pairs]), tgt, tgt_packing)
    return model.logits(hidden[: tgt_packing.tokens])


def model_loss(model: Transformer, r_drop: float = 0.0) -> Tensor:
    """The loss of the pairs of :func:`draw_pairs`, with label smoothing."""
    src, src_packing = pack([src for src, _ in draw_pairs()])
    tgt, tgt_packing = pack([tgt for _, tgt in draw_pairs()])
    return Objective(model, 0.1, r_drop)(src, src_packing, tgt, tgt.roll(-1), tgt_packing).loss
