"""Multi-head attention over packed sentences (section 3.2)."""

from __future__ import annotations

from torch import Tensor, nn

from dstransformer.config import ModelConfig
from dstransformer.model import ops
from dstransformer.model.modules import Linear
from dstransformer.model.packing import Packing


class MultiHeadAttention(nn.Module):
    """Attention of ``num_heads`` heads; queries and keys of a head are ``d_k`` wide, values ``d_v``.

    The projections that read the same tensor are one matrix: ``q, k, v`` for self-attention, ``k, v`` for the memory.

    Args:
        config: The architecture.
        causal: A position attends to itself and to what comes before it (section 3.2.3).
        over_memory: Keys and values come from the encoder's output.
        backend: The implementation of the product, see :func:`dstransformer.model.ops.attention`.
    """

    def __init__(self, config: ModelConfig, *, causal: bool, over_memory: bool, backend: ops.Backend = "auto") -> None:
        super().__init__()
        self.shape = ops.HeadShape(config.num_heads, config.d_k, config.d_v, causal)
        self.over_memory = over_memory
        self.dropout = config.attention_dropout
        self.backend = backend
        key_width, value_width = config.num_heads * config.d_k, config.num_heads * config.d_v
        self.kv_widths = (key_width, value_width)
        bias = config.attention_bias
        if over_memory:
            self.q = Linear(config.d_model, key_width, bias=bias)
            self.kv = Linear(config.d_model, key_width + value_width, bias=bias)
        else:
            self.qkv = Linear(config.d_model, 2 * key_width + value_width, bias=bias)
        self.out = Linear(value_width, config.d_model, bias=bias)

    def reset_parameters(self) -> None:
        """Glorot uniform for each projection by itself, not for the matrix that holds several; biases 0."""
        key_width, value_width = self.kv_widths
        fused = (
            [(self.q, (key_width,)), (self.kv, (key_width, value_width))]
            if self.over_memory
            else [(self.qkv, (key_width, key_width, value_width))]
        )
        for linear, widths in [*fused, (self.out, (self.out.out_features,))]:
            for part in linear.weight.split(list(widths)):
                nn.init.xavier_uniform_(part)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, packing: Packing, memory: Tensor | None, memory_packing: Packing | None) -> Tensor:
        """Attend within each sentence.

        Args:
            x: ``(packing.rows, d_model)``.
            packing: The sentences of ``x``.
            memory: ``(memory_packing.rows, d_model)`` for attention over the memory, else None.
            memory_packing: The sentences of ``memory``, as many as in ``x``.

        Returns:
            ``(packing.rows, d_model)``.
        """
        p = self.dropout if self.training else 0.0
        if self.over_memory:
            assert memory is not None
            assert memory_packing is not None
            projected, keys_values, key_packing = self.q(x), self.kv(memory), memory_packing
        else:
            projected, keys_values, key_packing = self.qkv(x), None, packing
        attended = ops.attention(projected, keys_values, packing, key_packing, self.shape, p, self.backend)
        merged: Tensor = self.out(attended)
        return merged
