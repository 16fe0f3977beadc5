"""Frozen parts of the model, ``training.freeze``: their gradients are zero, so Adam and Muon leave them as they are.

Nothing else differs from other runs: moments, partitions and checkpoints have the same form at every ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

#: The learned positions of both sides, and the embedding of another source vocabulary.
_EMBEDDINGS = ("embedding", "src_embedding", "src_input", "tgt_input")


def is_frozen(name: str, parts: Collection[str]) -> bool:
    """Whether a parameter belongs to one of the parts: ``embedding``, ``softmax``, ``encoder``, ``decoder.0`` …"""
    top, _, rest = name.partition(".")
    if top in _EMBEDDINGS:
        return "embedding" in parts
    if top in ("softmax", "output_bias"):
        return "softmax" in parts
    side = top.removesuffix("_norm")
    return side in parts or f"{side}.{rest.partition('.')[0]}" in parts


def freeze(model: nn.Module, parts: Collection[str]) -> None:
    """Make the gradients of all parameters of the parts zero."""
    for name, parameter in model.named_parameters():
        if is_frozen(name, parts):
            parameter.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
