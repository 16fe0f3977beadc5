"""The attention weights of a model, recorded while it encodes and decodes. Its outputs do not change.

The kernels never form the weights of a whole sentence. So each attention records its projected queries and keys, and
equation 1 is evaluated on them here.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor

from dstransformer.data.packing import Packing
from dstransformer.model.ops.reference import split_projections
from dstransformer.model.transformer import DecoderLayer, EncoderLayer, MultiHeadAttention, Transformer


class AttentionWeights(NamedTuple):
    """The weights of every layer and head for one sentence pair, fp32; each row sums to 1 (section 3.2.3).

    Attributes:
        encoder: Self-attention of the encoder, ``(layers, heads, src_len, src_len)``.
        decoder: Self-attention of the decoder, ``(layers, heads, tgt_len, tgt_len)``; 0 after each query.
        cross: Attention of the decoder over the memory, ``(layers, heads, tgt_len, src_len)``.
    """

    encoder: Tensor
    decoder: Tensor
    cross: Tensor


def attention_weights(model: Transformer, src: Tensor, tgt_in: Tensor) -> AttentionWeights:
    """The weights with which a model reads a sentence and continues a given target.

    Args:
        model: The model, in eval mode.
        src: The source tokens with their end, ``(src_len,)``.
        tgt_in: The decoder's input: the begin of the sentence and the target tokens, ``(tgt_len,)``.
    """
    weights = {
        attention: softmax_weights(q, k, causal=attention.shape.causal)
        for attention, (q, k, _) in record_projections(model, src, tgt_in).items()
    }
    encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
    decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
    return AttentionWeights(
        encoder=torch.stack([weights[layer.self_attention] for layer in encoder]),
        decoder=torch.stack([weights[layer.self_attention] for layer in decoder]),
        cross=torch.stack([weights[layer.memory_attention] for layer in decoder]),
    )


def softmax_weights(q: Tensor, k: Tensor, *, causal: bool) -> Tensor:
    """``softmax(q k^T / sqrt(d_k))`` (equation 1) in fp32.

    Args:
        q: ``(heads, len, d_k)``.
        k: ``(heads, key_len, d_k)``.
        causal: Mask what comes after each query; ``len`` equals ``key_len``.

    Returns:
        ``(heads, len, key_len)``.
    """
    scores = q.float() @ k.float().transpose(1, 2) / math.sqrt(q.shape[2])
    if causal:
        future = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu_(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores.softmax(dim=2)


def record_projections(
    model: Transformer, src: Tensor, tgt_in: Tensor
) -> dict[MultiHeadAttention, tuple[Tensor, Tensor, Tensor]]:
    """Encode and decode one sentence pair; arguments as for :func:`attention_weights`.

    Returns:
        For each attention its queries and keys, ``(heads, len, d_k)`` each, and values, ``(heads, len, d_v)``.
    """
    packing, tgt_packing = (Packing.from_lengths([len(ids)]).to(ids.device) for ids in (src, tgt_in))
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    with torch.no_grad(), ExitStack() as stack:
        recorded = {attention: stack.enter_context(attention.recording()) for attention in attentions}
        model(src, packing, tgt_in, tgt_packing)
    projections = {}
    for attention, ((queries, *keys_values), *_) in recorded.items():
        tokens = len(tgt_in) if attention.over_memory or attention.shape.causal else len(src)  # then rows of filler
        memory = keys_values[0][: len(src)] if keys_values else None
        q, k, v = split_projections(queries[:tokens], memory, attention.shape)
        projections[attention] = (q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
    return projections
