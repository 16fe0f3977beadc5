"""Multi-head attention over packed sentences (section 3.2), behind one interface with two backends."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dstransformer.config import ModelConfig
from dstransformer.errors import ConfigError
from dstransformer.model import cpu
from dstransformer.model.dropout import keep_mask
from dstransformer.model.linear import Linear
from dstransformer.model.packing import Packing

Backend = Literal["auto", "varlen", "padded"]


class MultiHeadAttention(nn.Module):
    """Attention of ``num_heads`` heads; queries and keys of a head are ``d_k`` wide, values ``d_v``.

    The projections that read the same tensor are one matrix: ``q, k, v`` for self-attention, ``k, v`` for the memory.

    Args:
        config: The architecture.
        causal: A position attends to itself and to what comes before it (section 3.2.3).
        over_memory: Keys and values come from the encoder's output.
        backend: Which kernel computes the product; ``auto`` takes ``varlen`` where it can run.
    """

    def __init__(self, config: ModelConfig, *, causal: bool, over_memory: bool, backend: Backend = "auto") -> None:
        super().__init__()
        self.num_heads, self.d_k, self.d_v = config.num_heads, config.d_k, config.d_v
        self.causal = causal
        self.shape = cpu.HeadShape(config.num_heads, config.d_k, config.d_v, causal)
        self.over_memory = over_memory
        self.dropout = config.attention_dropout
        self.backend = backend
        key_width, value_width = self.num_heads * self.d_k, self.num_heads * self.d_v
        self.kv_widths = (key_width, value_width)
        bias = config.attention_bias
        if over_memory:
            self.q = Linear(config.d_model, key_width, bias=bias)
            self.kv = Linear(config.d_model, key_width + value_width, bias=bias)
        else:
            self.qkv = Linear(config.d_model, 2 * key_width + value_width, bias=bias)
        self.out = Linear(value_width, config.d_model, bias=bias)

    def reset_parameters(self) -> None:
        """Glorot uniform for each projection on its own, not for the matrix that holds several; biases 0."""
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
        dropout = self.dropout if self.training else 0.0
        if self.over_memory:
            assert memory is not None
            assert memory_packing is not None
            projected, keys_values, key_packing = self.q(x), self.kv(memory), memory_packing
        else:
            projected, keys_values, key_packing = self.qkv(x), None, packing
        if self._use_varlen(projected, dropout):
            q, k, v = self._split(projected, keys_values)
            attended = _varlen_attention(q, k, v, packing, key_packing, self.causal).flatten(1)
        elif self.backend == "auto" and dropout == 0.0 and cpu.can_compute(projected):
            attended = cpu.packed_attention(projected, keys_values, packing, key_packing, self.shape)
        elif projected.device.type == "cpu":
            attended = self._attend_grouped(projected, keys_values, packing, key_packing, dropout)
        else:  # on a GPU many small products take longer than the padding
            attended = self._attend_padded(projected, keys_values, packing, key_packing, dropout)
        merged: Tensor = self.out(attended)
        return merged

    def _attend_grouped(
        self, projected: Tensor, keys_values: Tensor | None, packing: Packing, key_packing: Packing, dropout: float
    ) -> Tensor:
        groups = packing.group(key_packing)
        parts = groups.queries.split(projected)
        key_parts = [None] * len(parts) if keys_values is None else groups.keys.split(keys_values)
        sentences = zip(parts, key_parts, groups.queries.parts, groups.keys.parts, strict=True)
        return packing.fill(groups.queries.join([self._attend_padded(*group, dropout) for group in sentences]))

    def _attend_padded(
        self, projected: Tensor, keys_values: Tensor | None, packing: Packing, key_packing: Packing, dropout: float
    ) -> Tensor:
        padded = packing.pad(projected)
        q, k, v = self._split(padded, None if keys_values is None else key_packing.pad(keys_values))
        mask = None if self.causal else key_packing.padding_mask
        out = attention_product(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, self.causal, dropout)
        return packing.unpad(out.transpose(1, 2).flatten(2))

    def split_memory(self, memory: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """The memory's keys and values, ``(n, num_heads, max_len, d_k)`` and ``d_v``, for incremental decoding."""
        keys, values = torch.split(packing.pad(self.kv(memory)[: packing.tokens]), list(self.kv_widths), dim=-1)
        return self._heads(keys, self.d_k).transpose(1, 2), self._heads(values, self.d_v).transpose(1, 2)

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of self-attention: ``(rows, width)`` to ``(rows, num_heads, d)``."""
        return self._split(qkv, None)

    def _split(self, projected: Tensor, keys_values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        key_width, value_width = self.kv_widths
        if keys_values is None:
            q, k, v = torch.split(projected, [key_width, key_width, value_width], dim=-1)
        else:
            q = projected
            k, v = torch.split(keys_values, [key_width, value_width], dim=-1)
        return self._heads(q, self.d_k), self._heads(k, self.d_k), self._heads(v, self.d_v)

    def _heads(self, x: Tensor, width: int) -> Tensor:
        return x.view(*x.shape[:-1], self.num_heads, width)

    def _use_varlen(self, x: Tensor, dropout: float) -> bool:
        half = x.dtype in (torch.float16, torch.bfloat16)
        return (
            self.backend != "padded"
            and dropout == 0.0
            and max(self.d_k, self.d_v) <= MAX_VARLEN_WIDTH
            and _varlen_can_run(x.device, half)
        )


#: The widest head that flash attention computes.
MAX_VARLEN_WIDTH = 256


def check_backend(config: ModelConfig, backend: Backend, device: torch.device, half: bool) -> None:
    """Refuse an attention backend that cannot compute a model.

    Args:
        config: The architecture.
        backend: Of its attention.
        device: What it is computed on.
        half: In bf16 or fp16.

    Raises:
        ConfigError: ``varlen`` is asked for and cannot be had.
    """
    if backend != "varlen":
        return
    lacks = [
        what
        for able, what in (
            (_varlen_can_run(device, half), "a GPU of compute capability 8.0 or more in bf16 or fp16"),
            (config.attention_dropout == 0.0, "model.attention_dropout=0.0"),
            (max(config.d_k, config.d_v) <= MAX_VARLEN_WIDTH, f"model.d_k and d_v of at most {MAX_VARLEN_WIDTH}"),
        )
        if not able
    ]
    if lacks:
        raise ConfigError(
            f"training.attention_backend = varlen needs {' and '.join(lacks)}: set it to auto, which takes the best "
            "that there is"
        )


@lru_cache
def _varlen_can_run(device: torch.device, half: bool) -> bool:
    return device.type == "cuda" and half and torch.cuda.get_device_capability(device) >= (8, 0)


def _varlen_attention(q: Tensor, k: Tensor, v: Tensor, packing: Packing, keys: Packing, causal: bool) -> Tensor:
    """Flash attention on ``(tokens, heads, d)``; it wants one head width, so the narrower gets zeros."""
    from torch.nn.attention.varlen import varlen_attn

    d_k, d_v = q.shape[-1], v.shape[-1]
    width = -(-max(d_k, d_v) // 8) * 8
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    window = (-1, 0) if causal else (-1, -1)
    out = varlen_attn(q, k, v, packing.cu, keys.cu, packing.max_len, keys.max_len, scale=d_k**-0.5, window_size=window)
    assert isinstance(out, Tensor)
    return out[..., :d_v]


def attention_product(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool, dropout: float = 0.0
) -> Tensor:
    """Scaled dot-product attention, ``softmax(q k^T / sqrt(d_k)) v`` (equation 1), on padded heads.

    Args:
        q: ``(n, heads, len, d_k)``.
        k: ``(n, heads, key_len, d_k)``.
        v: ``(n, heads, key_len, d_v)``.
        key_mask: ``(n, key_len)``, or ``(n, len, key_len)`` for each query its own; True where a key is seen, None
            for all.
        causal: Mask what comes after each query; ``len`` equals ``key_len``.
        dropout: Probability that a weight is dropped.

    Returns:
        ``(n, heads, len, d_v)``.
    """
    mask = None if key_mask is None else key_mask[:, None] if key_mask.dim() == 3 else key_mask[:, None, None]
    if q.device.type != "cpu" or q.dtype == torch.float32:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
    # On a CPU in half precision the fused kernel is several times slower on many short sentences.
    scores = torch.matmul(q * (1.0 / math.sqrt(q.shape[-1])), k.transpose(-1, -2))
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1)
        scores = scores.masked_fill(future, float("-inf"))
    elif mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(dim=-1)
    if dropout:
        weights = weights * keep_mask(weights.shape, dropout, weights.dtype)
    return torch.matmul(weights, v)
