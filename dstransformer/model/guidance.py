"""Guided alignment: one head of the encoder-decoder attention learns word alignments (Chen et al., 2016)."""

from __future__ import annotations

import math

from torch import Tensor

from dstransformer.data.packing import Links, Packing


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
