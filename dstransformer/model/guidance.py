"""Guided alignment: one head of the encoder-decoder attention learns word alignments (Chen et al., 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dstransformer.model.packing import Packing


@dataclass(frozen=True)
class Links:
    """The alignments of those sentence pairs of a packed batch that have any.

    Attributes:
        src_rows: The rows of their source tokens in the batch, ``(src_tokens,)`` int64.
        src_packing: Their source sentences.
        tgt_rows: The rows of their target tokens, ``(tgt_tokens,)`` int64.
        tgt_packing: Their target sentences.
        places: Where in the weights ``(n, tgt_packing.max_len, src_packing.max_len)``, flattened, each pair of linked
            tokens is, ``(pairs,)`` int64.
        shares: 1 over the number of source tokens that the target token of each pair is linked to, ``(pairs,)`` fp32.
    """

    src_rows: Tensor
    src_packing: Packing
    tgt_rows: Tensor
    tgt_packing: Packing
    places: Tensor
    shares: Tensor

    def to(self, device: torch.device) -> Links:
        """The links on another device; the copy from pinned memory overlaps with computation."""
        return Links(
            self.src_rows.to(device, non_blocking=True),
            self.src_packing.to(device, non_blocking=True),
            self.tgt_rows.to(device, non_blocking=True),
            self.tgt_packing.to(device, non_blocking=True),
            self.places.to(device, non_blocking=True),
            self.shares.to(device, non_blocking=True),
        )

    def pin_memory(self) -> Links:
        """The links in page-locked memory."""
        return Links(
            self.src_rows.pin_memory(),
            self.src_packing.pin_memory(),
            self.tgt_rows.pin_memory(),
            self.tgt_packing.pin_memory(),
            self.places.pin_memory(),
            self.shares.pin_memory(),
        )


def alignment_cross_entropy(queries: Tensor, keys: Tensor, links: Links) -> Tensor:
    """Sum over linked target tokens of the cross-entropy between their alignment and the attention weights of a head.

    The alignment of a token is spread evenly over the source tokens that it is linked to. The weights are those of the
    position that predicts the token, before dropout.

    Args:
        queries: Those of the head for a packed batch, ``(rows, d_k)``.
        keys: Those of the head, ``(src_rows, d_k)``.
        links: The alignments.

    Returns:
        A scalar in fp32, in nats.
    """
    weights = log_weights(queries, keys, links.tgt_rows, links.tgt_packing, links.src_rows, links.src_packing)
    return -(weights.flatten()[links.places] * links.shares).sum()


def log_weights(
    queries: Tensor, keys: Tensor, tgt_rows: Tensor, tgt_packing: Packing, src_rows: Tensor, src_packing: Packing
) -> Tensor:
    """The logarithms of the attention weights of one head (equation 1) for some sentences of a packed batch, in fp32.

    Args:
        queries: Of the batch, ``(rows, d_k)``.
        keys: Of the batch, ``(src_rows, d_k)``.
        tgt_rows: The rows of the sentences in ``queries``.
        tgt_packing: The sentences that these rows are.
        src_rows: The rows of the sentences in ``keys``.
        src_packing: The sentences that these rows are.

    Returns:
        ``(n, tgt_packing.max_len, src_packing.max_len)``; minus infinity where a source sentence has no token.
    """
    q = tgt_packing.pad(queries.float()[tgt_rows])
    k = src_packing.pad(keys.float()[src_rows])
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    return scores.masked_fill(~src_packing.padding_mask[:, None], float("-inf")).log_softmax(dim=2)
