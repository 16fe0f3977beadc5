"""The Transformer (section 3 of the paper, from top to bottom) on packed batches.

A batch is its sentences laid end to end (:mod:`dstransformer.data.packing`). The modules hold weights and settings,
and :mod:`dstransformer.model.ops` computes. They compute in the precision of their input: weights of another precision
are rounded for the computation, and their gradients keep the precision of the weights, so that several batches are
summed in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dstransformer.config import Activation, ModelConfig, Positions
from dstransformer.data import BOS_ID
from dstransformer.data.packing import Packing
from dstransformer.data.plan import LengthSums
from dstransformer.model import ops

#: Tables of sinusoids have a multiple of this many rows, so that a new length rarely needs a new table.
TABLE_STEP = 256


class TensorModule(nn.Module):
    """A module whose call returns a tensor; the return type of ``nn.Module`` is ``Any``."""

    __call__: Callable[..., Tensor]


# 3.1 Encoder and decoder stacks


class Transformer(nn.Module):
    """Encoder and decoder, and the embeddings that they may share (sections 3.1 and 3.4).

    Args:
        config: The architecture.
        vocab_size: Number of pieces of the target side; the embedding has ``config.embedding_rows(vocab_size)`` rows.
        backend: The implementation of attention.
        src_vocab_size: Number of pieces of the source side; None if the vocabulary is joint.
        dtype: The precision in which it computes; None is that of its weights. Training in mixed precision has weights
            in fp32 (Micikevicius et al., 2018).
        int8_weights: Whether it computes with the values that its matrices have in an int8 export
            (:func:`dstransformer.model.ops.int8_values`), and learns the matrices themselves (Jacob et al., 2018).

    Attributes:
        call_layer: Calls a layer with its inputs. Training may compute layers again for their gradients
            (:func:`dstransformer.model.loss.recompute`).
    """

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        backend: ops.Backend = "auto",
        *,
        src_vocab_size: int | None = None,
        dtype: torch.dtype | None = None,
        int8_weights: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.int8_weights = int8_weights
        self.dtype = dtype
        self.call_layer: Callable[..., Tensor] = nn.Module.__call__
        rows, width = config.embedding_rows(vocab_size), config.d_model
        self.embedding = nn.Embedding(rows, width)  # of the target
        self.src_embedding = None
        if config.tie_embeddings != "all":
            src_rows = rows if src_vocab_size is None else config.embedding_rows(src_vocab_size)
            self.src_embedding = nn.Embedding(src_rows, width)
        elif src_vocab_size not in (None, vocab_size):
            raise ValueError(f"one embedding cannot hold vocabularies of {src_vocab_size} and {vocab_size} pieces")
        self.softmax = nn.Embedding(rows, width) if config.tie_embeddings == "none" else None  # the matrix before it
        self.output_bias = nn.Parameter(torch.empty(rows)) if config.output_bias else None
        self.src_input = PositionedEmbedding(config)
        self.tgt_input = PositionedEmbedding(config, from_zeros=config.start == "zeros")
        self.encoder = nn.ModuleList(EncoderLayer(config, backend) for _ in range(config.encoder_depth))
        self.decoder = nn.ModuleList(DecoderLayer(config, backend) for _ in range(config.decoder_depth))
        self.encoder_norm = LayerNorm(width, eps=config.norm_epsilon) if config.norm == "pre" else None
        self.decoder_norm = LayerNorm(width, eps=config.norm_epsilon) if config.norm == "pre" else None
        self.reset_parameters()
        for module in self.modules():
            if isinstance(module, Linear):
                module.int8_weights = int8_weights

    def reset_parameters(self) -> None:
        """Glorot uniform matrices; embeddings normal with standard deviation d_model^-0.5; norms 1 and 0; biases 0."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.reset_projections()
            elif isinstance(module, PositionedEmbedding | LayerNorm):
                module.reset_parameters()
        for embedding in (self.embedding, self.src_embedding, self.softmax):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=self.config.d_model**-0.5)
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)

    @property
    def softmax_weight(self) -> Tensor:
        """The matrix before the softmax, ``(rows, d_model)``."""
        return self._in_use(self.embedding if self.softmax is None else self.softmax)

    def _in_use(self, embedding: nn.Embedding) -> Tensor:
        return ops.through_int8(embedding.weight) if self.int8_weights else embedding.weight

    def int8_names(self) -> frozenset[str]:
        """The names of the weights that an int8 export stores in 8 bits: all matrices but learned positions."""
        embeddings = {id(module) for module in (self.embedding, self.src_embedding, self.softmax)}
        return frozenset(
            f"{name}.weight"
            for name, module in self.named_modules()
            if isinstance(module, Linear) or id(module) in embeddings
        )

    def forward(self, src: Tensor, src_packing: Packing, tgt_in: Tensor, tgt_packing: Packing) -> Tensor:
        """The decoder's output for sentence pairs, ``(tgt_packing.rows, d_model)``.

        Args:
            src: Source tokens, each sentence with its end, ``(src_tokens,)``.
            src_packing: The sentences of ``src``.
            tgt_in: The decoder's input, each sentence with its begin, ``(tgt_tokens,)``.
            tgt_packing: The sentences of ``tgt_in``.
        """
        return self.decode(tgt_in, tgt_packing, self.encode(src, src_packing), src_packing)

    @property
    def alignment_layer(self) -> MultiHeadAttention:
        """The attention whose first head learns alignments: that of the last layer but one (Garg et al., 2019)."""
        layer: DecoderLayer = self.decoder[max(len(self.decoder) - 2, 0)]  # type: ignore[assignment]
        return layer.memory_attention

    def encode(self, src: Tensor, packing: Packing) -> Tensor:
        """The memory, ``(packing.rows, d_model)``, of sentences with their ends, ``(src_tokens,)``."""
        src, positions = packing.fill(src), packing.fill(packing.positions)
        embedding = self.embedding if self.src_embedding is None else self.src_embedding
        x: Tensor = self.src_input(src, positions, packing.max_len, self._in_use(embedding), self.dtype)
        attend = PackedAttention(packing)
        for layer in self.encoder:
            x = self.call_layer(layer, x, attend)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def decode(self, tgt_in: Tensor, packing: Packing, memory: Tensor, memory_packing: Packing) -> Tensor:
        """The decoder's output at all positions, ``(packing.rows, d_model)``, for the input ``(tgt_tokens,)``."""
        tgt_in, positions = packing.fill(tgt_in), packing.fill(packing.positions)
        x: Tensor = self.tgt_input(tgt_in, positions, packing.max_len, self._in_use(self.embedding), self.dtype)
        attend, attend_memory = PackedAttention(packing), PackedAttention(packing, memory, memory_packing)
        for layer in self.decoder:
            x = self.call_layer(layer, x, attend, attend_memory)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """``(…, d_model)`` to unnormalised scores of every piece, ``(…, rows)``."""
        return F.linear(hidden, self.softmax_weight, self.output_bias)

    def multiply_adds(self, sums: LengthSums) -> int:
        """Multiplications of all products in a forward pass over some sentence pairs."""
        layers: list[EncoderLayer | DecoderLayer] = [*self.encoder, *self.decoder]
        return sum(layer.multiply_adds(sums) for layer in layers) + self.softmax_weight.numel() * sums.tgt_tokens


class EncoderLayer(TensorModule):
    """Self-attention and a feed-forward network."""

    def __init__(self, config: ModelConfig, backend: ops.Backend) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, causal=False, over_memory=False, backend=backend)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        """``(rows, d_model)`` to the same shape."""
        x = self.self_attention_residual(x, partial(self.self_attention, attend=attend))
        return self.feed_forward_residual(x, self.feed_forward)

    def multiply_adds(self, sums: LengthSums) -> int:
        """Multiplications of its products for some sentence pairs."""
        tokens = sums.src_tokens
        return self.self_attention.multiply_adds(tokens, tokens, sums.src_src) + self.feed_forward.multiply_adds(tokens)


class DecoderLayer(TensorModule):
    """Causal self-attention, encoder-decoder attention (over the memory), and a feed-forward network."""

    def __init__(self, config: ModelConfig, backend: ops.Backend) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, causal=True, over_memory=False, backend=backend)
        self.self_attention_residual = Residual(config)
        self.memory_attention = MultiHeadAttention(config, causal=False, over_memory=True, backend=backend)
        self.memory_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, attend: Attend, attend_memory: Attend) -> Tensor:
        """``(rows, d_model)`` to the same shape: all positions of a batch, or one position of each hypothesis."""
        x = self.self_attention_residual(x, partial(self.self_attention, attend=attend))
        x = self.memory_attention_residual(x, partial(self.memory_attention, attend=attend_memory))
        return self.feed_forward_residual(x, self.feed_forward)

    def multiply_adds(self, sums: LengthSums) -> int:
        """Multiplications of its products for some sentence pairs."""
        tokens = sums.tgt_tokens
        attentions = self.self_attention.multiply_adds(tokens, tokens, sums.tgt_tgt)
        attentions += self.memory_attention.multiply_adds(tokens, sums.src_tokens, sums.tgt_src)
        return attentions + self.feed_forward.multiply_adds(tokens)


class Residual(TensorModule):
    """The connection around a sub-layer: ``LayerNorm(x + Dropout(Sublayer(x)))``, or with the norm before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.d_model, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)
        self.post = config.norm == "post"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """``(…, d_model)`` to the same shape."""
        if self.post:
            return self.norm(x, sublayer(x), self.dropout.active_p)
        return x + self.dropout(sublayer(self.norm(x)))


class LayerNorm(TensorModule, nn.LayerNorm):
    """Layer normalisation over ``d_model``, of a tensor or of a residual sum."""

    def forward(self, x: Tensor, y: Tensor | None = None, p: float = 0.0) -> Tensor:
        """``LayerNorm(x)``, or ``LayerNorm(x + Dropout(y))`` with the dropout probability ``p``; ``(…, d_model)``."""
        if y is not None:
            return ops.residual_norm(x, y, self.weight, self.bias, self.eps, p)
        weight, bias = ops.rounded(self.weight, x.dtype), ops.rounded(self.bias, x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


# 3.2 Attention

#: Equation 1 for all heads, between the two projections of an attention: from the attention and its queries (in
#: self-attention queries, keys and values), ``(rows, heads * …)``, to the values that the queries find,
#: ``(rows, heads * d_v)``. It knows where the keys are: in a packed batch, or in the cache of a search.
Attend = Callable[["MultiHeadAttention", Tensor], Tensor]


@dataclass(frozen=True)
class PackedAttention:
    """Attention within each sentence of a packed batch, or from each sentence to its memory.

    Attributes:
        packing: The sentences of the queries.
        memory: The encoder's output, ``(memory_packing.rows, d_model)``; None for self-attention.
        memory_packing: Its sentences.
    """

    packing: Packing
    memory: Tensor | None = None
    memory_packing: Packing | None = None

    def __call__(self, attention: MultiHeadAttention, queries: Tensor) -> Tensor:
        """Attend; see :data:`Attend`."""
        keys_values = None if self.memory is None else attention.kv(self.memory)
        if attention.recorded is not None:
            attention.recorded.append((queries,) if keys_values is None else (queries, keys_values))
        key_packing = self.packing if self.memory_packing is None else self.memory_packing
        p = attention.dropout if attention.training else 0.0
        return ops.attention(queries, keys_values, self.packing, key_packing, attention.shape, p, attention.backend)


class MultiHeadAttention(TensorModule):
    """``Concat(head_1, …, head_h) W_O`` with ``head_i = Attention(Q W_Qi, K W_Ki, V W_Vi)`` (section 3.2.2).

    ``Attention`` is equation 1, see :func:`dstransformer.model.ops.reference.attention_product`. Queries and keys of a
    head are ``d_k`` wide, values ``d_v``. The projections of all heads that read the same tensor are one matrix:
    ``qkv`` for self-attention, ``kv`` for the memory.

    Args:
        config: The architecture.
        causal: A position attends to itself and earlier positions (section 3.2.3).
        over_memory: Keys and values come from the encoder's output: encoder-decoder attention (section 3.2.3).
        backend: The implementation of equation 1, see :func:`dstransformer.model.ops.attention`.
    """

    def __init__(self, config: ModelConfig, *, causal: bool, over_memory: bool, backend: ops.Backend = "auto") -> None:
        super().__init__()
        self.shape = ops.HeadShape(config.num_heads, config.d_k, config.d_v, causal)
        self.over_memory = over_memory
        self.dropout = config.attention_dropout
        self.backend = backend
        self.recorded: list[tuple[Tensor, ...]] | None = None  # see recording()
        keys, values, width = config.num_heads * config.d_k, config.num_heads * config.d_v, config.d_model
        bias = config.attention_bias
        if over_memory:
            self.q = Linear(width, keys, bias=bias)
            self.kv = Linear(width, keys + values, bias=bias, projections=[keys, values])
        else:
            self.qkv = Linear(width, 2 * keys + values, bias=bias, projections=[keys, keys, values])
        self.out = Linear(values, width, bias=bias)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        """``(rows, d_model)`` to the same shape, see :data:`Attend`."""
        queries = self.q(x) if self.over_memory else self.qkv(x)
        return self.out(attend(self, queries))

    def multiply_adds(self, queries: int, keys: int, pairs: int) -> int:
        """Multiplications of its products.

        Args:
            queries: Tokens that attend.
            keys: Tokens that they attend to.
            pairs: Pairs of a query and a key that it sees.
        """
        products = pairs * self.shape.heads * (self.shape.d_k + self.shape.d_v) + queries * self.out.weight.numel()
        if self.over_memory:
            return products + queries * self.q.weight.numel() + keys * self.kv.weight.numel()
        return products + queries * self.qkv.weight.numel()

    @contextmanager
    def recording(self) -> Iterator[list[tuple[Tensor, ...]]]:
        """Within it, each call adds its queries and its keys with values; or all three as one, if it has no memory."""
        self.recorded = recorded = list[tuple[Tensor, ...]]()
        try:
            yield recorded
        finally:
            self.recorded = None  # before the layer is computed again for its gradient


# 3.3 Position-wise feed-forward networks


class FeedForward(TensorModule):
    """``max(0, x W1 + b1) W2 + b2`` at each position (section 3.3, equation 2), or another activation than ReLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff, activation=config.activation)
        self.outer = Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``(rows, d_model)`` to the same shape."""
        return self.outer(self.dropout(self.inner(x)))

    def multiply_adds(self, tokens: int) -> int:
        """Multiplications of its products for so many tokens."""
        return tokens * (self.inner.weight.numel() + self.outer.weight.numel())


class Linear(TensorModule, nn.Linear):
    """``x W^T + b``, or an activation of it.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether to add ``b``.
        activation: The activation; None: none.
        projections: The rows of each matrix, if ``W`` is several that read the same input, one below the other.

    Attributes:
        projections: The rows of each matrix in ``W``.
        int8_weights: Whether it computes with the values of ``W`` in an int8 export.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        activation: Activation | None = None,
        projections: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.activation = activation
        self.projections = list(projections) or [out_features]
        self.int8_weights = False

    def reset_projections(self) -> None:
        """Glorot uniform for each projection separately, not for the matrix that holds several; biases 0."""
        for weight in torch.split(self.weight, self.projections):
            nn.init.xavier_uniform_(weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(rows, in_features)`` to ``(rows, out_features)``."""
        weight = ops.through_int8(self.weight) if self.int8_weights else self.weight
        return ops.linear(x, weight, self.bias, activation=self.activation)


# 3.4 and 3.5 Embeddings and positional encoding


class PositionedEmbedding(TensorModule):
    """Adds the position to a scaled token embedding and applies dropout (sections 3.4, 3.5 and 5.4).

    The embedding matrix is an argument of each call, because source, target and softmax may share it.

    Args:
        config: The architecture.
        from_zeros: Whether zeros take the place of the embedding of the begin of a sentence.

    Attributes:
        max_len: Maximum tokens of a sentence; None: any number.
    """

    def __init__(self, config: ModelConfig, *, from_zeros: bool = False) -> None:
        super().__init__()
        self.from_zeros = from_zeros
        self.scale = math.sqrt(config.d_model)
        self.max_len = config.max_positions if config.positions == "learned" else None
        self.dropout = Dropout(config.dropout)
        self.kind = config.positions
        self.positions = nn.Embedding(config.max_positions, config.d_model) if config.positions == "learned" else None

    def reset_parameters(self) -> None:
        """Learned positions start like the embeddings: normal, with standard deviation d_model^-0.5."""
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
        if self.from_zeros:
            embedded = embedded.masked_fill((ids == BOS_ID)[:, None], 0.0)
        if self.positions is None:
            rows = -(-max_len // TABLE_STEP) * TABLE_STEP
            table = sinusoidal_table(rows, weight.shape[1], embedded.dtype, embedded.device, self.kind)
            embedded = embedded + table[positions]
        else:
            if max_len > self.positions.num_embeddings:
                raise ValueError(f"a sentence has {max_len} tokens, model.max_positions is {self.max_len}")
            embedded = embedded + self.positions(positions)
        return self.dropout(embedded if dtype is None else embedded.to(dtype))


@lru_cache(maxsize=16)
def sinusoidal_table(
    rows: int, d_model: int, dtype: torch.dtype, device: torch.device, kind: Positions = "sinusoidal"
) -> Tensor:
    """``PE(pos, 2i) = sin(pos / 10000^(2i / d_model))``, ``PE(pos, 2i + 1) = cos(…)`` (section 3.5).

    ``timing``, of the authors' tensor2tensor and of Marian, has ``i / (d_model / 2 - 1)`` in place of ``2i / d_model``.
    """
    steps = {"sinusoidal": d_model, "timing": max(d_model - 2, 1)}[kind]
    frequencies = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / steps))
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(device=device, dtype=dtype)


# 5.4 Dropout


class Dropout(TensorModule, nn.Dropout):
    """Sets each element to zero with probability ``p`` and scales the others by ``1 / (1 - p)``."""

    @property
    def active_p(self) -> float:
        """``p`` while training, else 0."""
        return self.p if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of ``x``, any shape, while training."""
        return ops.dropout(x, self.active_p)
