"""Memory of a micro-batch on a GPU: a formula of the architecture and of its tokens.

It holds for a CUDA device in half precision with attention over packed sentences (``varlen``). A test compares it with
updates of the real engine.
"""

from __future__ import annotations

from typing import NamedTuple

from dstransformer.config import ModelConfig, Precision
from dstransformer.model.loss import CHUNK_LOGITS
from dstransformer.model.ops.varlen import MAX_WIDTH, Backend

#: Bytes of a number that the model computes with, of one in fp32, and of an element of a dropout mask.
_HALF, _SINGLE, _MASK = 2, 4, 1

#: Bytes per logit at the loss's peak. PyTorch converts to fp32 and takes the softmax in one step for fp16 only.
_LOGIT = {"bf16": 2 * _SINGLE + _HALF, "fp16": _SINGLE + 2 * _HALF}


def uses_varlen(config: ModelConfig, backend: Backend, precision: Precision) -> bool:
    """Whether a device of compute capability 8.0 or more trains this model with attention over packed sentences."""
    fits = config.attention_dropout == 0.0 and max(config.d_k, config.d_v) <= MAX_WIDTH
    return backend != "padded" and precision != "fp32" and fits


class LayerBytes(NamedTuple):
    """What a token takes in one layer of encoder and decoder from forward to backward pass.

    Attributes:
        src: A source token in the encoder.
        memory: A source token in the decoder: its key and value.
        tgt: A target token.
    """

    src: int
    memory: int
    tgt: int


def activation_bytes(config: ModelConfig, src_tokens: int, tgt_tokens: int, *, checkpoints: bool = False) -> int:
    """What the forward pass of a micro-batch keeps for the backward pass, without the loss.

    Args:
        config: The architecture.
        src_tokens: Source tokens of the micro-batch.
        tgt_tokens: Target tokens of it.
        checkpoints: Whether of each layer only its input is kept.
    """
    width = config.d_model
    mask = width * _MASK if config.dropout else 0
    embedded = width * _HALF + mask + (_norm_bytes(config) if config.norm == "pre" else 0)
    layer = LayerBytes(width * _HALF, 0, width * _HALF) if checkpoints else _layer_bytes(config)
    src = config.num_layers * (layer.src + layer.memory) + embedded
    tgt = config.num_layers * layer.tgt + embedded
    return src * src_tokens + tgt * tgt_tokens


def recomputed_bytes(config: ModelConfig, src_tokens: int, tgt_tokens: int) -> int:
    """What the gradient of a decoder layer takes that is computed again, beside the inputs of all layers.

    That is what the layer keeps otherwise, and the gradients of its last feed-forward network.
    """
    layer = _layer_bytes(config)
    gradients = (config.d_ff + 3 * config.d_model) * _HALF
    return layer.memory * src_tokens + (layer.tgt + gradients) * tgt_tokens


def _layer_bytes(config: ModelConfig) -> LayerBytes:
    """What each layer keeps.

    Kept are, per token: what each product reads, what each norm reads and its two statistics, the masks of dropout,
    and of attention the queries, keys, values, results and the logarithms of its sums.
    """
    width = config.d_model
    mask = width * _MASK if config.dropout else 0
    residual = width * _HALF + mask + _norm_bytes(config)
    keys, values = config.num_heads * config.d_k, config.num_heads * config.d_v
    attended = _attended_bytes(config)
    self_attention = _kept(config, keys, keys, values) * _HALF + attended + residual
    feed_forward = config.d_ff * _HALF + residual
    if config.activation_dropout:
        feed_forward += config.d_ff * (_HALF + _MASK)
    memory_queries = _kept(config, keys) * _HALF + attended + residual
    memory_keys = _kept(config, keys, values) * _HALF
    return LayerBytes(self_attention + feed_forward, memory_keys, self_attention + memory_queries + feed_forward)


def _norm_bytes(config: ModelConfig) -> int:
    """What a norm reads, and its two statistics."""
    return config.d_model * _HALF + 2 * _SINGLE


def loss_bytes(config: ModelConfig, rows: int, tgt_tokens: int, precision: Precision) -> int:
    """What the loss of a micro-batch needs while it is computed, beside the activations.

    Args:
        config: The architecture.
        rows: Rows of the softmax matrix, ``config.embedding_rows(vocab_size)``.
        tgt_tokens: Target tokens of the micro-batch.
        precision: ``bf16`` or ``fp16``.
    """
    chunk = max(1, CHUNK_LOGITS["cuda"] // rows)
    matrix = rows * config.d_model
    gradient = tgt_tokens * config.d_model * _HALF + (matrix * _SINGLE if tgt_tokens > chunk else 0)
    return min(tgt_tokens, chunk) * rows * _LOGIT[precision] + matrix * _HALF + gradient


def _attended_bytes(config: ModelConfig) -> int:
    """The result of attention per token, cut to the width of the values for the next product, and its logarithms."""
    values = config.num_heads * config.d_v
    cut = values if values < _full_width(config) else 0
    return (_full_width(config) + cut) * _HALF + config.num_heads * _SINGLE


def _kept(config: ModelConfig, *widths: int) -> int:
    """Numbers per token that attention keeps of a projection with parts of these widths.

    The narrower parts are copied; the others stay where the product wrote them.
    """
    full = _full_width(config)
    return (sum(widths) if full in widths else 0) + full * sum(part < full for part in widths)


def _full_width(config: ModelConfig) -> int:
    """The width of all heads in flash attention, which has one for queries, keys and values, a multiple of 8."""
    return config.num_heads * (-(-max(config.d_k, config.d_v) // 8) * 8)
