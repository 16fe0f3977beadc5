"""Floating-point operations of an update: a formula of the architecture and of the lengths of its sentences."""

from __future__ import annotations

from dstransformer.config import ModelConfig
from dstransformer.data.plan import LengthSums

#: Operations of a multiply-add.
_MULTIPLY_ADD = 2

#: Forward and backward together, in forward passes: a product has two gradients, each a product of the same size.
_FORWARD_AND_BACKWARD = 3


def training_flops(config: ModelConfig, rows: int, sums: LengthSums) -> int:
    """Operations of forward and backward pass: three times :func:`forward_flops`.

    Args:
        config: The architecture.
        rows: Rows of the softmax matrix, ``config.embedding_rows(vocab_size)``.
        sums: The sentence pairs.
    """
    return _FORWARD_AND_BACKWARD * forward_flops(config, rows, sums)


def forward_flops(config: ModelConfig, rows: int, sums: LengthSums) -> int:
    """Operations of the forward pass: two for each multiply-add of a matrix product on real tokens.

    Counted are the projections and feed-forward networks of all layers, the two products of each attention (section
    3.2) for the pairs of query and key that see each other, and the product before the softmax. The causal mask hides
    half of the decoder's self-attention, and that half is not counted. Nor are padding, embedding look-ups, norms,
    softmax, activations, dropout, what a program recomputes to save memory, and the optimizer: they are work of an
    implementation, or negligible next to the products.

    Args:
        config: The architecture.
        rows: Rows of the softmax matrix.
        sums: The sentence pairs.
    """
    keys, values = config.num_heads * config.d_k, config.num_heads * config.d_v
    queries_and_out = config.d_model * (keys + values)
    keys_and_values = config.d_model * (keys + values)
    feed_forward = 2 * config.d_model * config.d_ff
    layer = queries_and_out + keys_and_values + feed_forward
    encoder = layer * sums.src_tokens + (keys + values) * sums.src_src
    decoder = (layer + queries_and_out) * sums.tgt_tokens + keys_and_values * sums.src_tokens  # and of the memory
    decoder += (keys + values) * (sums.tgt_tgt + sums.tgt_src)
    layers = config.encoder_depth * encoder + config.decoder_depth * decoder
    return _MULTIPLY_ADD * (layers + rows * config.d_model * sums.tgt_tokens)
