"""One position at a time: the decoder with cached keys and values, for beam search."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dstransformer.model import cpu
from dstransformer.model.attention import attention_product
from dstransformer.model.layers import DecoderLayer
from dstransformer.model.packing import Packing
from dstransformer.model.transformer import Transformer

#: Positions that a cache has room for at first; it doubles when it is full.
FIRST_CAPACITY = 32


class IncrementalDecoder:
    """Decodes ``n`` sentences with ``beam_size`` rows each, the rows of a sentence one after the other.

    Cached keys and values stay where they were written, and each row remembers which row of its sentence wrote every
    position on its path. So reordering hypotheses moves a few integers instead of the caches.

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
        memory = model.encode(src, packing)
        kind = PackedCache if cpu.can_compute(memory, model.softmax_weight) else PaddedCache
        layers: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self._layers = [(layer, kind(layer, memory, packing, beam_size)) for layer in layers]
        # The row of its sentence that wrote each position of a row's path: (n, beam_size, length).
        self._path = torch.empty(packing.sentences, beam_size, 0, dtype=torch.int64, device=src.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row: ``(rows,)`` to the logits of the next one, ``(rows, pieces)``."""
        model = self.model
        own = torch.arange(self.beam_size, device=self._path.device)
        self._path = torch.cat((self._path, own[:, None].expand(self._path.shape[0], -1, 1)), dim=2)
        positions = torch.full_like(tokens, self.length)
        x: Tensor = model.tgt_input(tokens, positions, self.length + 1, model.embedding.weight)
        for layer, cache in self._layers:
            past, memory = layer.self_attention, layer.memory_attention
            x = layer.self_attention_residual(x, lambda y, a=past, c=cache: a.out(c.past(a.qkv(y), self._path)))
            x = layer.memory_attention_residual(x, lambda y, a=memory, c=cache: a.out(c.memory(a.q(y))))
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
        for _, cache in self._layers:
            cache.keep(sentences)


class Cache(Protocol):
    """What a decoder layer remembers, and how it attends to it."""

    def past(self, qkv: Tensor, path: Tensor) -> Tensor:
        """Remember a position more of every row, and attend to its path.

        Args:
            qkv: Query, key and value, ``(rows, num_heads * (2 * d_k + d_v))``.
            path: ``(n, beam_size, length)``, the new position included.

        Returns:
            ``(rows, num_heads * d_v)``.
        """

    def memory(self, q: Tensor) -> Tensor:
        """Attend to the memory: queries ``(rows, num_heads * d_k)`` to ``(rows, num_heads * d_v)``."""

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these."""


class PackedCache:
    """For a CPU: without padding, and a row attends to its own path only. What is dropped stays where it is."""

    def __init__(self, layer: DecoderLayer, memory: Tensor, packing: Packing, beam_size: int) -> None:
        self._past, self._cross = layer.self_attention.shape, layer.memory_attention.shape
        slots = packing.sentences
        self._keys = memory.new_empty(slots, FIRST_CAPACITY, beam_size, self._past.heads * self._past.d_k)
        self._values = memory.new_empty(slots, FIRST_CAPACITY, beam_size, self._past.heads * self._past.d_v)
        self._slots = torch.arange(slots)
        self._memory: Tensor = layer.memory_attention.kv(memory)
        self._begins, self._ends = packing.cu[:-1], packing.cu[1:]

    def past(self, qkv: Tensor, path: Tensor) -> Tensor:
        """See :class:`Cache`."""
        if path.shape[2] > self._keys.shape[1]:
            self._keys, self._values = (torch.cat((cache, cache), dim=1) for cache in (self._keys, self._values))
        return cpu.attend_path(qkv, self._keys, self._values, self._slots, path, self._past)

    def memory(self, q: Tensor) -> Tensor:
        """See :class:`Cache`."""
        return cpu.attend_memory(q, self._memory, self._begins, self._ends, self._cross)

    def keep(self, sentences: Tensor) -> None:
        """See :class:`Cache`."""
        self._slots = self._slots[sentences]
        self._begins, self._ends = self._begins[sentences], self._ends[sentences]


class PaddedCache:
    """For a GPU: the rows of a sentence attend together to all that its rows have written, through a mask of paths.

    Keys and values are ``(n, num_heads, capacity * beam_size, d)``; position ``t`` of row ``b`` of a sentence lies at
    ``t * beam_size + b``.
    """

    def __init__(self, layer: DecoderLayer, memory: Tensor, packing: Packing, beam_size: int) -> None:
        self._attention, self._beam_size = layer.self_attention, beam_size
        n, heads, room = packing.sentences, self._attention.num_heads, FIRST_CAPACITY * beam_size
        self._keys = memory.new_empty(n, heads, room, self._attention.d_k)
        self._values = memory.new_empty(n, heads, room, self._attention.d_v)
        memory_keys, memory_values = layer.memory_attention.split_memory(memory, packing)
        self._memory_keys, self._memory_values = memory_keys.contiguous(), memory_values.contiguous()
        self._memory_mask = packing.padding_mask

    def past(self, qkv: Tensor, path: Tensor) -> Tensor:
        """See :class:`Cache`."""
        query, key, value = (self._by_sentence(part) for part in self._attention.split(qkv))
        end = path.shape[2] * self._beam_size
        if end > self._keys.shape[2]:
            self._keys, self._values = (torch.cat((cache, cache), dim=2) for cache in (self._keys, self._values))
        self._keys[:, :, end - self._beam_size : end] = key
        self._values[:, :, end - self._beam_size : end] = value
        visible = (path[..., None] == torch.arange(self._beam_size, device=path.device)).flatten(2)
        return _by_row(
            attention_product(query, self._keys[:, :, :end], self._values[:, :, :end], visible, causal=False)
        )

    def memory(self, q: Tensor) -> Tensor:
        """See :class:`Cache`."""
        query = self._by_sentence(q.view(q.shape[0], *self._memory_keys.shape[1::2]))
        return _by_row(
            attention_product(query, self._memory_keys, self._memory_values, self._memory_mask, causal=False)
        )

    def keep(self, sentences: Tensor) -> None:
        """See :class:`Cache`."""
        self._memory_mask = self._memory_mask[sentences]
        self._keys, self._values = self._keys[sentences], self._values[sentences]
        self._memory_keys, self._memory_values = self._memory_keys[sentences], self._memory_values[sentences]

    def _by_sentence(self, heads: Tensor) -> Tensor:
        """``(rows, num_heads, d)`` to ``(n, num_heads, beam_size, d)``: the rows of a sentence are its queries."""
        return heads.view(-1, self._beam_size, *heads.shape[1:]).transpose(1, 2)


def _by_row(out: Tensor) -> Tensor:
    """``(n, num_heads, beam_size, d_v)`` to ``(rows, num_heads * d_v)``."""
    return out.transpose(1, 2).flatten(2).flatten(0, 1)
