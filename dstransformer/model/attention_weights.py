"""The attention weights of a model, recorded while it encodes and decodes. Its outputs do not change.

The kernels never form the weights of a whole sentence. So each attention records its projected queries and keys, and
equation 1 is evaluated on them here.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

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


class Projections(NamedTuple):
    """Queries and keys, ``(heads, len, d_k)`` each, and values, ``(heads, len, d_v)``, of one sentence."""

    q: Tensor
    k: Tensor
    v: Tensor


def attention_weights(model: Transformer, src: Tensor, tgt_in: Tensor) -> AttentionWeights:
    """The weights with which a model reads a sentence and continues a given target.

    Args:
        model: The model, in eval mode.
        src: The source tokens with their end, ``(src_len,)``.
        tgt_in: The decoder's input: the begin of the sentence and the target tokens, ``(tgt_len,)``.
    """
    recorded = record_projections(model, src, tgt_in)
    encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
    decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
    stacks = (
        [layer.self_attention for layer in encoder],
        [layer.self_attention for layer in decoder],
        [layer.memory_attention for layer in decoder],
    )
    return AttentionWeights(
        *(
            torch.stack([softmax_weights(*recorded[module][:2], causal=module.shape.causal) for module in modules])
            for modules in stacks
        )
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


def record_projections(model: Transformer, src: Tensor, tgt_in: Tensor) -> dict[nn.Module, Projections]:
    """Encode and decode one sentence pair; the projections of each :class:`MultiHeadAttention`.

    Arguments as for :func:`attention_weights`.
    """
    packing, tgt_packing = (Packing.from_lengths([len(ids)]).to(ids.device) for ids in (src, tgt_in))
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    with torch.no_grad(), ExitStack() as stack:
        recorded = {attention: stack.enter_context(attention.recording()) for attention in attentions}
        model(src, packing, tgt_in, tgt_packing)
    return {attention: _split(attention, calls[0], len(src), len(tgt_in)) for attention, calls in recorded.items()}


def _split(attention: MultiHeadAttention, recorded: tuple[Tensor, ...], src_len: int, tgt_len: int) -> Projections:
    """The recorded projections of one attention by head; rows after the sentence are filler."""
    queries, *keys_values = recorded
    of_target = attention.over_memory or attention.shape.causal
    heads = split_projections(
        queries[: tgt_len if of_target else src_len],
        keys_values[0][:src_len] if keys_values else None,
        attention.shape,
    )
    return Projections(*(one.transpose(0, 1) for one in heads))
