"""One position at a time: the decoder with cached keys and values, for beam search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dstransformer.model.attention import MultiHeadAttention, attention_product
from dstransformer.model.layers import DecoderLayer
from dstransformer.model.packing import Packing
from dstransformer.model.transformer import Transformer

#: Positions that a cache has room for at first; it doubles when it is full.
FIRST_CAPACITY = 32


@dataclass
class LayerCache:
    """What a decoder layer remembers.

    Attributes:
        keys: Of the positions so far and room for more, ``(n, num_heads, capacity * beam_size, d_k)``; position ``t``
            of row ``b`` of a sentence lies at ``t * beam_size + b``.
        values: ``(n, num_heads, capacity * beam_size, d_v)``.
        memory_keys: Of the memory, projected once, ``(n, num_heads, src_len, d_k)``.
        memory_values: ``(n, num_heads, src_len, d_v)``.
    """

    keys: Tensor
    values: Tensor
    memory_keys: Tensor
    memory_values: Tensor


class IncrementalDecoder:
    """Decodes ``n`` sentences with ``beam_size`` rows each, the rows of a sentence one after the other.

    Cached keys and values stay where they were written. The rows of a sentence attend together to all that its rows
    have written, through a mask of what lies on each one's own path. So reordering hypotheses moves a few integers
    instead of the caches.

    Args:
        model: In eval mode.
        src: Source tokens, each sentence with its end, ``(src_tokens,)``.
        packing: The sentences of ``src``.
        beam_size: Rows a sentence.
    """

    def __init__(self, model: Transformer, src: Tensor, packing: Packing, beam_size: int) -> None:
        self.model = model
        self.beam_size = beam_size
        self.length = 0
        self._memory_mask = packing.padding_mask
        memory = model.encode(src, packing)
        n, room = packing.sentences, FIRST_CAPACITY * beam_size
        self._caches = []
        for layer in self._layers():
            attention = layer.self_attention
            keys = memory.new_empty(n, attention.num_heads, room, attention.d_k)
            values = memory.new_empty(n, attention.num_heads, room, attention.d_v)
            memory_keys, memory_values = layer.memory_attention.split_memory(memory, packing)
            self._caches.append(LayerCache(keys, values, memory_keys.contiguous(), memory_values.contiguous()))
        # The row of its sentence that wrote each position of a row's path: (n, beam_size, length).
        self._path = torch.empty(n, beam_size, 0, dtype=torch.int64, device=src.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row: ``(rows,)`` to the logits of the next one, ``(rows, pieces)``."""
        model = self.model
        visible = self._extend_path()
        positions = torch.full_like(tokens, self.length)
        x: Tensor = model.tgt_input(tokens, positions, self.length + 1, model.embedding.weight)
        for layer, cache in zip(self._layers(), self._caches, strict=True):
            x = layer.self_attention_residual(
                x, lambda y, a=layer.self_attention, c=cache: self._attend_past(a, c, y, visible)
            )
            x = layer.memory_attention_residual(
                x, lambda y, a=layer.memory_attention, c=cache: self._attend_memory(a, c, y)
            )
            x = layer.feed_forward_residual(x, layer.feed_forward)
        self.length += 1
        if model.decoder_norm is not None:
            x = model.decoder_norm(x)
        return model.logits(x)

    def reorder(self, rows: Tensor) -> None:
        """Row ``i`` goes on from what was row ``rows[i]``, of the same sentence."""
        self._path = self._path.flatten(0, 1)[rows].view_as(self._path)

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these, ``(kept,)``; their rows move up."""
        self._path = self._path[sentences]
        self._memory_mask = self._memory_mask[sentences]
        for cache in self._caches:
            cache.keys, cache.values = cache.keys[sentences], cache.values[sentences]
            cache.memory_keys, cache.memory_values = cache.memory_keys[sentences], cache.memory_values[sentences]

    def _layers(self) -> list[DecoderLayer]:
        return list(self.model.decoder)  # type: ignore[arg-type]

    def _extend_path(self) -> Tensor:
        """Let every row write the next position, and say what it sees: ``(n, beam_size, length * beam_size)``."""
        own = torch.arange(self.beam_size, device=self._path.device)
        next_position = own[:, None].expand(self._path.shape[0], -1, 1)
        self._path = torch.cat((self._path, next_position), dim=2)
        return (self._path[..., None] == own).flatten(2)

    def _attend_past(self, attention: MultiHeadAttention, cache: LayerCache, x: Tensor, visible: Tensor) -> Tensor:
        query, key, value = (self._by_sentence(part) for part in attention.split_step(x))
        begin, end = self.length * self.beam_size, (self.length + 1) * self.beam_size
        if end > cache.keys.shape[2]:
            cache.keys, cache.values = _with_room(cache.keys), _with_room(cache.values)
        cache.keys[:, :, begin:end] = key
        cache.values[:, :, begin:end] = value
        out = attention_product(query, cache.keys[:, :, :end], cache.values[:, :, :end], visible, causal=False)
        return self._merge(attention, out)

    def _attend_memory(self, attention: MultiHeadAttention, cache: LayerCache, x: Tensor) -> Tensor:
        query = self._by_sentence(attention.q(x).unflatten(-1, (attention.num_heads, attention.d_k)))
        out = attention_product(query, cache.memory_keys, cache.memory_values, self._memory_mask, causal=False)
        return self._merge(attention, out)

    def _by_sentence(self, heads: Tensor) -> Tensor:
        """``(rows, num_heads, d)`` to ``(n, num_heads, beam_size, d)``: the rows of a sentence are its queries."""
        return heads.view(-1, self.beam_size, *heads.shape[1:]).transpose(1, 2)

    def _merge(self, attention: MultiHeadAttention, out: Tensor) -> Tensor:
        """``(n, num_heads, beam_size, d_v)`` to ``(rows, d_model)``."""
        merged: Tensor = attention.out(out.transpose(1, 2).flatten(2).flatten(0, 1))
        return merged


def _with_room(cache: Tensor) -> Tensor:
    """The same with twice the capacity."""
    n, heads, capacity, width = cache.shape
    larger = cache.new_empty(n, heads, 2 * capacity, width)
    larger[:, :, :capacity] = cache
    return larger
