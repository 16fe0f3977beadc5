"""The Transformer (section 3) on packed batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dstransformer.config import ModelConfig
from dstransformer.model.attention import MultiHeadAttention
from dstransformer.model.layers import DecoderLayer, EncoderLayer, FeedForward, PositionedEmbedding
from dstransformer.model.loss import r_drop_cross_entropy, smoothed_cross_entropy
from dstransformer.model.modules import LayerNorm
from dstransformer.model.ops import Backend
from dstransformer.model.packing import Packing


class LossSums(NamedTuple):
    """Sums over the target tokens of a batch, in nats: the training loss and the negative log-likelihood."""

    loss: Tensor
    nll: Tensor


class Transformer(nn.Module):
    """Encoder and decoder, and the embeddings that they may share.

    Args:
        config: The architecture.
        vocab_size: Number of pieces of the target side; the embedding has ``config.embedding_rows(vocab_size)`` rows.
        label_smoothing: epsilon of the training loss.
        backend: The implementation of attention.
        r_drop: alpha of R-Drop; 0 trains with one pass.
        src_vocab_size: Number of pieces of the source side; None if the vocabulary is joint.
        dtype: The precision in which it computes; None is that of its weights. Training in mixed precision has weights
            in fp32 (Micikevicius et al., 2018).
    """

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        label_smoothing: float = 0.0,
        backend: Backend = "auto",
        *,
        r_drop: float = 0.0,
        src_vocab_size: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.label_smoothing = label_smoothing
        self.r_drop = r_drop
        self.dtype = dtype
        rows, width = config.embedding_rows(vocab_size), config.d_model
        self.embedding = nn.Embedding(rows, width)  # of the target
        self.src_embedding = None
        if config.tie_embeddings != "all":
            src_rows = rows if src_vocab_size is None else config.embedding_rows(src_vocab_size)
            self.src_embedding = nn.Embedding(src_rows, width)
        elif src_vocab_size not in (None, vocab_size):
            raise ValueError(f"one embedding cannot hold vocabularies of {src_vocab_size} and {vocab_size} pieces")
        self.softmax = nn.Embedding(rows, width) if config.tie_embeddings == "none" else None
        self.src_input = PositionedEmbedding(config)
        self.tgt_input = PositionedEmbedding(config)
        self.encoder = nn.ModuleList(EncoderLayer(config, backend) for _ in range(config.num_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, backend) for _ in range(config.num_layers))
        pre_norm = config.norm == "pre"
        self.encoder_norm = LayerNorm(width) if pre_norm else None
        self.decoder_norm = LayerNorm(width) if pre_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform matrices, embeddings N(0, d_model^-0.5), norms 1 and 0, biases 0."""
        for module in self.modules():
            if isinstance(module, MultiHeadAttention | FeedForward | PositionedEmbedding | nn.LayerNorm):
                module.reset_parameters()
        for embedding in (self.embedding, self.src_embedding, self.softmax):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=self.config.d_model**-0.5)

    @property
    def _src_weight(self) -> Tensor:
        return (self.embedding if self.src_embedding is None else self.src_embedding).weight

    @property
    def softmax_weight(self) -> Tensor:
        """The matrix before the softmax, ``(rows, d_model)``."""
        return (self.embedding if self.softmax is None else self.softmax).weight

    def forward(
        self, src: Tensor, src_packing: Packing, tgt_in: Tensor, tgt_out: Tensor, tgt_packing: Packing
    ) -> LossSums:
        """The loss of a packed batch of sentence pairs; see :class:`dstransformer.batching.PackedBatch`.

        With R-Drop (Liang et al., 2021) a batch in training goes through the model twice, side by side, with different
        dropout masks.
        """
        twice = self.training and self.r_drop > 0.0
        if twice:
            src, src_packing, tgt_in, tgt_packing = (
                src.repeat(2),
                src_packing.twice(),
                tgt_in.repeat(2),
                tgt_packing.twice(),
            )
        memory = self.encode(src, src_packing)
        hidden = self.decode(tgt_in, tgt_packing, memory, src_packing)
        if twice:
            return LossSums(
                *r_drop_cross_entropy(hidden, self.softmax_weight, tgt_out, self.label_smoothing, self.r_drop)
            )
        return LossSums(*smoothed_cross_entropy(hidden, self.softmax_weight, tgt_out, self.label_smoothing))

    def encode(self, src: Tensor, packing: Packing) -> Tensor:
        """The memory, ``(packing.rows, d_model)``, of source tokens ``(src_tokens,)``."""
        src, positions = packing.fill(src), packing.fill(packing.positions)
        x: Tensor = self.src_input(src, positions, packing.max_len, self._src_weight, self.dtype)
        for layer in self.encoder:
            x = layer(x, packing)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def decode(self, tgt_in: Tensor, packing: Packing, memory: Tensor, memory_packing: Packing) -> Tensor:
        """The decoder's output at all positions, ``(packing.rows, d_model)``, for the input ``(tgt_tokens,)``."""
        tgt_in, positions = packing.fill(tgt_in), packing.fill(packing.positions)
        x: Tensor = self.tgt_input(tgt_in, positions, packing.max_len, self.embedding.weight, self.dtype)
        for layer in self.decoder:
            x = layer(x, packing, memory, memory_packing)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """``(…, d_model)`` to unnormalised scores of every piece, ``(…, rows)``."""
        return F.linear(hidden, self.softmax_weight)


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


@contextmanager
def meta_device() -> Iterator[None]:
    """Models built in this context have parameters with names and shapes, but without values and memory."""
    with torch.device("meta"), _SkipInitialisation():
        yield


def parameter_count(config: ModelConfig, vocab_size: int, src_vocab_size: int | None = None) -> int:
    """Number of weights of a model, counted without building them; for the sizes see :class:`Transformer`."""
    with meta_device():
        model = Transformer(config, vocab_size, src_vocab_size=src_vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())
