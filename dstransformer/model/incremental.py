"""The decoder one position at a time, with cached keys and values, of one model or of several that decode as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from dstransformer.data.packing import Packing, round_rows
from dstransformer.model import ops
from dstransformer.model.transformer import Attend, DecoderLayer, Linear, Transformer

Part = TypeVar("Part", bound=nn.Module)

#: Maximum number of row counts that the steps of a ragged decoder have from one power of two to the next.
STEP_ROW_COUNTS = 16


class IncrementalDecoder:
    """Decodes ``n`` sentences, starting with one row without tokens for each.

    Args:
        model: The model, in eval mode.
        src: Source tokens, each sentence with its end, ``(src_tokens,)``.
        packing: The sentences of ``src``.
        beam_size: Maximum rows per sentence.

    Attributes:
        ragged: A sentence may have any number of rows. Otherwise it has ``beam_size`` from the first step on.
    """

    def __init__(self, model: Transformer, src: Tensor, packing: Packing, beam_size: int) -> None:
        self.model = model
        self.length = 0
        config, memory = model.config, model.encode(src, packing)
        layers: list[DecoderLayer] = [prepare(layer) for layer in model.decoder]  # type: ignore[misc]
        projections = [layer.memory_attention.kv for layer in layers]
        shape = ops.HeadShape(config.num_heads, config.d_k, config.d_v, causal=True)
        self._caches = ops.build_caches(memory, projections, packing, shape, beam_size)
        self.ragged = self._caches.ragged
        past, memory_of = self._caches.attend_past, self._caches.attend_memory
        self._layers = [
            (layer, _cached(past, number), _cached(memory_of, number)) for number, layer in enumerate(layers)
        ]
        self._logits = ops.prepare_linear(model.softmax_weight, model.output_bias)

    def step(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Row ``i`` continues what was row ``rows[i]`` with one more token.

        Args:
            tokens: ``(new_rows,)``.
            rows: ``(new_rows,)`` int64, the rows of a sentence next to each other, the sentences in their order. A
                sentence without rows is dropped.

        Returns:
            The logits of the next tokens, ``(new_rows, pieces)``.
        """
        model, count = self.model, len(rows)
        if self.ragged:
            filler = round_rows(count, STEP_ROW_COUNTS) - count
            tokens, rows = (torch.cat((part, part[-1:].expand(filler))) for part in (tokens, rows))
        self._caches.advance(rows)
        positions = torch.full_like(tokens, self.length)
        x: Tensor = model.tgt_input(tokens, positions, self.length + 1, model.embedding.weight)
        for layer, attend, attend_memory in self._layers:
            x = layer(x, attend, attend_memory)
        self.length += 1
        if model.decoder_norm is not None:
            x = model.decoder_norm(x)
        return self._logits(x)[:count]


def prepare(part: Part) -> Part:
    """A part of a model for many calls without gradient: it shares the weights, and has its products prepared.

    See :func:`dstransformer.model.ops.prepare_linear`. They are functions among the attributes of the copy, which
    Python finds before PyTorch looks for modules and their hooks: with few rows a step is mostly calls.
    """
    prepared = copy(part)
    for name, child in part._modules.items():
        if isinstance(child, Linear):
            vars(prepared)[name] = ops.prepare_linear(child.weight, child.bias, activation=child.activation)
        elif child is not None:
            vars(prepared)[name] = prepare(child) if child._modules else child
    return prepared


def _cached(attend: Callable[[int, Tensor], Tensor], layer: int) -> Attend:
    """Attention to the cache of a layer."""
    return lambda _, queries: attend(layer, queries)


class Ensemble(nn.Module):
    """Models with one vocabulary. The probability of a token is the mean of theirs.

    Args:
        models: At least one, all on one device and in one precision.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.members: Sequence[Transformer] = nn.ModuleList(models)  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:
        """The device of all models."""
        return self.members[0].softmax_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of all models."""
        return self.members[0].softmax_weight.dtype

    @property
    def max_positions(self) -> int | None:
        """The fewest positions that one of the models has learned; None if all have sinusoids."""
        lengths = [model.tgt_input.max_len for model in self.members]
        return min((length for length in lengths if length is not None), default=None)

    @property
    def bytes_per_token(self) -> int:
        """Memory that a token of a hypothesis takes in the caches of all models."""
        layers: list[DecoderLayer] = [layer for model in self.members for layer in model.decoder]  # type: ignore[misc]
        cached = sum(layer.self_attention.qkv.out_features for layer in layers)  # the query of each position too
        return cached * self.members[0].softmax_weight.element_size()

    def start(self, src: Tensor, packing: Packing, beam_size: int) -> IncrementalDecoder | MeanDecoder:
        """Encode sentences and start decoding them; for arguments see :class:`IncrementalDecoder`."""
        decoders = [IncrementalDecoder(model, src, packing, beam_size) for model in self.members]
        return decoders[0] if len(decoders) == 1 else MeanDecoder(decoders)


class MeanDecoder:
    """Averages the probabilities of several decoders, with which it shares its interface."""

    def __init__(self, decoders: Sequence[IncrementalDecoder]) -> None:
        self._decoders = decoders
        self.ragged = all(decoder.ragged for decoder in decoders)

    def step(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Continue rows with one token each, as :meth:`IncrementalDecoder.step`; logits are log-probabilities.

        Models with more filler rows in the embedding than others lose them.
        """
        parts = [decoder.step(tokens, rows).float().log_softmax(dim=-1) for decoder in self._decoders]
        pieces = min(part.shape[1] for part in parts)
        return torch.stack([part[:, :pieces] for part in parts]).logsumexp(dim=0) - math.log(len(parts))
