"""What a model costs: its weights, the operations of an update, and the memory of a micro-batch on a GPU.

All follow from the architecture and the lengths of sentences; no model with values is built. Tests compare them with
real models and updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dstransformer.config import ModelConfig, Precision
from dstransformer.data.plan import LengthSums
from dstransformer.model.loss import CHUNK_LOGITS
from dstransformer.model.ops.varlen import MAX_WIDTH, Backend
from dstransformer.model.transformer import Transformer

#: Bytes of a number that the model computes with, of one in fp32, and of an element of a dropout mask.
_HALF, _SINGLE, _MASK = 2, 4, 1


@contextmanager
def meta_device() -> Iterator[None]:
    """Models built in this context have parameters with names and shapes, but without values and memory."""
    with torch.device("meta"), _SkipInitialisation():
        yield


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation.

    On the meta device it has no effect, but PyTorch imports its compiler to find that out, which takes seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function unless it draws initial values."""
        given = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return given["tensor"]
        return args[0] if func in (Tensor.uniform_, Tensor.normal_) else func(*args, **given)


@cache
def parameter_count(config: ModelConfig, vocab_size: int, src_vocab_size: int | None = None) -> int:
    """Number of weights of a model, counted without building them; for the sizes see :class:`Transformer`."""
    with meta_device():
        model = Transformer(config, vocab_size, src_vocab_size=src_vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())


def training_flops(config: ModelConfig, rows: int, sums: LengthSums) -> int:
    """Operations of forward and backward pass: two for each multiply-add of a matrix product on real tokens.

    Counted are the projections and feed-forward networks of all layers, the two products of each attention (section
    3.2) for the pairs of query and key that see each other, and the product before the softmax. The causal mask hides
    half of the decoder's self-attention, and that half is not counted. Nor are padding, embedding look-ups, norms,
    softmax, activations, dropout, what a program recomputes to save memory, and the optimizer: they are work of an
    implementation, or negligible next to the products. In the backward pass a product has two gradients, each a
    product of the same size.

    Args:
        config: The architecture.
        rows: Rows of the softmax matrix, ``config.embedding_rows(vocab_size)``.
        sums: The sentence pairs.
    """
    keys, values = config.num_heads * config.d_k, config.num_heads * config.d_v
    queries_and_out = keys_and_values = config.d_model * (keys + values)
    layer = queries_and_out + keys_and_values + 2 * config.d_model * config.d_ff
    encoder = layer * sums.src_tokens + (keys + values) * sums.src_src
    decoder = (layer + queries_and_out) * sums.tgt_tokens + keys_and_values * sums.src_tokens  # and of the memory
    decoder += (keys + values) * (sums.tgt_tgt + sums.tgt_src)
    layers = config.encoder_depth * encoder + config.decoder_depth * decoder
    forward = 2 * (layers + rows * config.d_model * sums.tgt_tokens)
    return 3 * forward


# Memory, on a CUDA device in half precision with attention over packed sentences (``varlen``) and PyTorch's operators:
# what PyTorch compiles of them takes less


def uses_varlen(config: ModelConfig, backend: Backend, precision: Precision) -> bool:
    """Whether a device of compute capability 8.0 or more trains this model with attention over packed sentences."""
    fits = config.attention_dropout == 0.0 and max(config.d_k, config.d_v) <= MAX_WIDTH
    return backend != "padded" and precision != "fp32" and fits


def activation_bytes(config: ModelConfig, src_tokens: int, tgt_tokens: int, *, recompute: bool = False) -> int:
    """What the forward pass of a micro-batch keeps for the backward pass, without the loss.

    Kept are, per token: what each product reads, what each norm reads and its two statistics, the masks of dropout,
    and of attention the queries, keys, values, results and the logarithms of its sums.

    Args:
        config: The architecture.
        src_tokens: Source tokens of the micro-batch.
        tgt_tokens: Target tokens of it.
        recompute: Whether only the input of each layer is kept.
    """
    width = config.d_model
    encoder, decoder = config.encoder_depth, config.decoder_depth
    src, tgt = encoder * width * _HALF, decoder * width * _HALF
    if not recompute:
        src = encoder * _layer_bytes(config, 0) + decoder * _memory_bytes(config)
        tgt = decoder * _layer_bytes(config, 1)
    norm = width * _HALF + 2 * _SINGLE if config.norm == "pre" else 0
    embedded = width * _HALF + (width * _MASK if config.dropout else 0) + norm
    return (src + embedded) * src_tokens + (tgt + embedded) * tgt_tokens


def recomputed_bytes(config: ModelConfig, src_tokens: int, tgt_tokens: int) -> int:
    """Memory to compute a decoder layer again, and its gradient, beside the inputs of all layers.

    That is what the layer keeps otherwise, and the gradients of its feed-forward network.
    """
    gradients = (config.d_ff + 3 * config.d_model) * _HALF
    return _memory_bytes(config) * src_tokens + (_layer_bytes(config, 1) + gradients) * tgt_tokens


def _memory_bytes(config: ModelConfig) -> int:
    """What a decoder layer keeps per source token: its key and value."""
    return _kept(config, config.num_heads * config.d_k, config.num_heads * config.d_v) * _HALF


def _layer_bytes(config: ModelConfig, cross_attentions: int) -> int:
    """What a layer keeps per token, without the keys and values of the memory."""
    width = config.d_model
    mask = width * _MASK if config.dropout else 0
    residual = 2 * (width * _HALF + _SINGLE) + mask
    keys, values = config.num_heads * config.d_k, config.num_heads * config.d_v
    attended = _attended_bytes(config)
    self_attention = _kept(config, keys, keys, values) * _HALF + attended + residual
    cross_attention = _kept(config, keys) * _HALF + attended + residual
    inner = _HALF
    if config.activation != "relu":  # its gradient needs its input, that of ReLU the result
        inner += _HALF
    if config.activation_dropout:
        inner += _MASK + (_HALF if config.activation == "relu" else 0)
    return self_attention + cross_attentions * cross_attention + config.d_ff * inner + residual


def loss_bytes(config: ModelConfig, rows: int, tgt_tokens: int) -> int:
    """What the loss of a micro-batch needs while it is computed, beside the activations.

    Beside a chunk's logits there are log-probabilities and smoothed targets in fp32, and the gradient.

    Args:
        config: The architecture.
        rows: Rows of the softmax matrix, ``config.embedding_rows(vocab_size)``.
        tgt_tokens: Target tokens of the micro-batch.
    """
    chunk = max(1, CHUNK_LOGITS["cuda"] // rows)
    matrix = rows * config.d_model
    matrices = 2 if tgt_tokens > chunk else 1  # the gradient of this chunk, and the sum of those before
    gradient = tgt_tokens * config.d_model * _HALF + matrices * matrix * _SINGLE
    return min(tgt_tokens, chunk) * rows * 2 * (_HALF + _SINGLE) + matrix * _HALF + gradient


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
