"""Initial weights other than the paper's."""

from __future__ import annotations

from torch import nn

from dstransformer.model.transformer import FeedForward, MultiHeadAttention


def zero_residual_branches(model: nn.Module) -> None:
    """Let the output of each sub-layer begin at zero (Zhang et al., 2019), in place.

    ``W_O`` of attention (section 3.2.2) and ``W_2`` of feed-forward networks (equation 2) become 0. So a layer begins
    as its layer norms alone, or with norms before its sub-layers as the identity.
    """
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.zeros_(module.out.weight)
        elif isinstance(module, FeedForward):
            nn.init.zeros_(module.outer.weight)
