"""The layers of encoder and decoder (section 3.1), and their embeddings and positions (sections 3.4 and 3.5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dstransformer.config import ModelConfig
from dstransformer.model.attention import MultiHeadAttention
from dstransformer.model.modules import Dropout, LayerNorm, Linear
from dstransformer.model.ops import Backend
from dstransformer.model.packing import Packing


class Residual(nn.Module):
    """The connection around a sub-layer: ``LayerNorm(x + Dropout(Sublayer(x)))``, or with the norm before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.post = config.norm == "post"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """``(…, d_model)`` to the same shape."""
        if self.post:
            normed: Tensor = self.norm(x, sublayer(x), self.dropout.active_p)
            return normed
        summed: Tensor = x + self.dropout(sublayer(self.norm(x)))
        return summed


class FeedForward(nn.Module):
    """``max(0, x W1 + b1) W2 + b2`` at each position (section 3.3, equation 2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff, relu=True)
        self.outer = Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def reset_parameters(self) -> None:
        """Glorot uniform; biases 0."""
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(rows, d_model)`` to the same shape."""
        transformed: Tensor = self.outer(self.dropout(self.inner(x)))
        return transformed


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network."""

    def __init__(self, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, causal=False, over_memory=False, backend=backend)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """``(packing.rows, d_model)`` to the same shape."""
        x = self.self_attention_residual(x, lambda y: self.self_attention(y, packing, None, None))
        encoded: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return encoded


class DecoderLayer(nn.Module):
    """Causal self-attention, attention over the memory, and a feed-forward network."""

    def __init__(self, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, causal=True, over_memory=False, backend=backend)
        self.self_attention_residual = Residual(config)
        self.memory_attention = MultiHeadAttention(config, causal=False, over_memory=True, backend=backend)
        self.memory_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, packing: Packing, memory: Tensor, memory_packing: Packing) -> Tensor:
        """``(packing.rows, d_model)`` to the same shape, attending to ``memory`` ``(memory_packing.rows, d_model)``."""
        x = self.self_attention_residual(x, lambda y: self.self_attention(y, packing, None, None))
        x = self.memory_attention_residual(x, lambda y: self.memory_attention(y, packing, memory, memory_packing))
        decoded: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return decoded


class PositionedEmbedding(nn.Module):
    """Adds the position to a scaled token embedding and applies dropout (sections 3.4, 3.5 and 5.4).

    The embedding matrix is an argument of each call, because source, target and softmax may share it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.max_positions = config.max_positions
        self.dropout = Dropout(config.dropout)
        self.positions = nn.Embedding(config.max_positions, config.d_model) if config.positions == "learned" else None

    def reset_parameters(self) -> None:
        """Learned positions start like the embeddings, N(0, d_model^-0.5)."""
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=self.positions.embedding_dim**-0.5)

    def forward(
        self, ids: Tensor, positions: Tensor, max_len: int, weight: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Embed tokens.

        Args:
            ids: ``(tokens,)``.
            positions: Position of each token in its sentence, from 0, ``(tokens,)``.
            max_len: One more than the largest position.
            weight: The embedding matrix, ``(rows, d_model)``.
            dtype: Precision of the result; None is that of the matrix.

        Returns:
            ``(tokens, d_model)``.

        Raises:
            ValueError: With learned positions, a sentence of more than ``max_positions`` tokens.
        """
        embedded = F.embedding(ids, weight) * self.scale
        if self.positions is None:
            table = sinusoidal_table(-(-max_len // 256) * 256, weight.shape[1], embedded.dtype, embedded.device)
            embedded = embedded + table[positions]
        else:
            if max_len > self.max_positions:
                raise ValueError(f"a sentence has {max_len} tokens, model.max_positions is {self.max_positions}")
            embedded = embedded + self.positions(positions)
        dropped: Tensor = self.dropout(embedded if dtype is None else embedded.to(dtype))
        return dropped


@lru_cache(maxsize=16)
def sinusoidal_table(rows: int, d_model: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``PE(pos, 2i) = sin(pos / 10000^(2i / d_model))``, ``PE(pos, 2i + 1) = cos(…)`` (section 3.5)."""
    frequencies = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(device=device, dtype=dtype)
