"""One position at a time: the decoder with cached keys and values, for beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dstransformer.model import cpu
from dstransformer.model.attention import attention_product
from dstransformer.model.layers import DecoderLayer
from dstransformer.model.packing import Packing, round_rows
from dstransformer.model.transformer import Transformer

#: On a CPU the steps meet at most so many numbers of rows from one power of two to the next.
ROW_COUNTS = 16

#: Positions that a padded cache has room for at first; it doubles when it is full.
FIRST_CAPACITY = 32


class IncrementalDecoder:
    """Decodes ``n`` sentences, beginning with one row of no tokens for each.

    Cached keys and values stay where they were written, and each row remembers where on its path they lie. So
    reordering hypotheses moves a few integers instead of the caches.

    Args:
        model: In eval mode.
        src: Source tokens, each sentence with its end, ``(src_tokens,)``.
        packing: The sentences of ``src``.
        beam_size: Most rows a sentence.

    Attributes:
        ragged: A sentence may have any number of rows. Otherwise it has ``beam_size`` from the first step on.
    """

    def __init__(self, model: Transformer, src: Tensor, packing: Packing, beam_size: int) -> None:
        self.model = model
        self.length = 0
        memory = model.encode(src, packing)
        self.ragged = cpu.can_compute(memory, model.softmax_weight)
        layers: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self._layers = [(layer, _products(layer, packed=self.ragged)) for layer in layers]
        self._logits = cpu.pack_linear(model.softmax_weight, None) if self.ragged else model.logits
        self._caches: Caches = (
            PackedCaches(layers, memory, packing) if self.ragged else PaddedCaches(layers, memory, packing, beam_size)
        )

    def step(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Row ``i`` goes on from what was row ``rows[i]``, with a token more.

        Args:
            tokens: ``(new_rows,)``.
            rows: ``(new_rows,)`` int64, those of a sentence one after the other, the sentences in their order. One
                without rows is dropped.

        Returns:
            The logits of the next tokens, ``(new_rows, pieces)``.
        """
        model, count = self.model, len(rows)
        if self.ragged:
            filler = round_rows(count, ROW_COUNTS) - count
            tokens, rows = (torch.cat((part, part[-1:].expand(filler))) for part in (tokens, rows))
        self._caches.go_on(rows)
        positions = torch.full_like(tokens, self.length)
        x: Tensor = model.tgt_input(tokens, positions, self.length + 1, model.embedding.weight)
        for number, (layer, by) in enumerate(self._layers):
            past, memory = partial(self._caches.past, number), partial(self._caches.memory, number)
            x = layer.self_attention_residual(x, lambda y, p=by, attend=past: p.past_out(attend(p.qkv(y))))
            x = layer.memory_attention_residual(x, lambda y, p=by, attend=memory: p.memory_out(attend(p.memory_q(y))))
            x = layer.feed_forward_residual(x, by.feed_forward)
        self.length += 1
        if model.decoder_norm is not None:
            x = model.decoder_norm(x)
        return self._logits(x)[:count]


class _Products(NamedTuple):
    """The products of a decoder layer with its weights."""

    qkv: Callable[[Tensor], Tensor]
    past_out: Callable[[Tensor], Tensor]
    memory_q: Callable[[Tensor], Tensor]
    memory_out: Callable[[Tensor], Tensor]
    feed_forward: Callable[[Tensor], Tensor]


def _products(layer: DecoderLayer, *, packed: bool) -> _Products:
    past, memory, network = layer.self_attention, layer.memory_attention, layer.feed_forward
    if not packed:
        return _Products(past.qkv, past.out, memory.q, memory.out, network)
    linears = (past.qkv, past.out, memory.q, memory.out, network.inner, network.outer)
    qkv, past_out, memory_q, memory_out, inner, outer = (
        cpu.pack_linear(part.weight, part.bias, relu=part.relu) for part in linears
    )
    return _Products(qkv, past_out, memory_q, memory_out, lambda y: outer(inner(y)))


class Caches(Protocol):
    """What the decoder layers remember, and how they attend to it."""

    def go_on(self, rows: Tensor) -> None:
        """Begin a step; see :meth:`IncrementalDecoder.step`."""

    def past(self, layer: int, qkv: Tensor) -> Tensor:
        """Remember a position more of every row, and attend to all on its path.

        Args:
            layer: Number of the layer.
            qkv: Query, key and value, ``(rows, num_heads * (2 * d_k + d_v))``.

        Returns:
            ``(rows, num_heads * d_v)``.
        """

    def memory(self, layer: int, q: Tensor) -> Tensor:
        """Attend to the memory: queries ``(rows, num_heads * d_k)`` to ``(rows, num_heads * d_v)``."""


class PackedCaches:
    """For a CPU: without padding. Keys and values stay in what each step's projection left, its queries included.

    The path of a row is the row that it was at each position, ``(rows, length)``.
    """

    def __init__(self, layers: Sequence[DecoderLayer], memory: Tensor, packing: Packing) -> None:
        self._past_shapes = [layer.self_attention.shape for layer in layers]
        self._memory_shapes = [layer.memory_attention.shape for layer in layers]
        self._memories: list[Tensor] = [layer.memory_attention.kv(memory) for layer in layers]
        self._pasts: list[list[Tensor]] = [[] for _ in layers]  # each position's, as the projection left it
        self._cu = packing.cu
        self._sentences = torch.arange(packing.sentences)  # of each row
        self._path = torch.empty(packing.sentences, 0, dtype=torch.int32)

    def go_on(self, rows: Tensor) -> None:
        """See :class:`Caches`."""
        self._sentences = self._sentences[rows]
        self._path = torch.cat((self._path[rows], torch.arange(len(rows), dtype=torch.int32)[:, None]), dim=1)
        sentences, counts = torch.unique_consecutive(self._sentences, return_counts=True)
        self._row_cu = torch.cat((counts.new_zeros(1), counts)).cumsum(0).int()
        self._begins, self._ends = self._cu[sentences], self._cu[sentences + 1]

    def past(self, layer: int, qkv: Tensor) -> Tensor:
        """See :class:`Caches`."""
        self._pasts[layer].append(qkv.contiguous())
        return cpu.attend_path(self._pasts[layer], self._path, self._past_shapes[layer])

    def memory(self, layer: int, q: Tensor) -> Tensor:
        """See :class:`Caches`."""
        memory, shape = self._memories[layer], self._memory_shapes[layer]
        return cpu.attend_memory(q, memory, self._row_cu, self._begins, self._ends, shape)


class PaddedCaches:
    """For a GPU, and a CPU without kernels: the rows of a sentence attend together to all that they have written.

    A mask hides what is not on a row's path.

    Keys and values of a layer are ``(n, num_heads, capacity * beam_size, d)``; position ``t`` of row ``b`` of a
    sentence lies at ``t * beam_size + b``. The path of a row is the ``b`` that it was at each position, ``(n *
    beam_size, length)``.
    """

    def __init__(self, layers: Sequence[DecoderLayer], memory: Tensor, packing: Packing, beam_size: int) -> None:
        self._attentions = [layer.self_attention for layer in layers]
        self._beam_size = beam_size
        n, room = packing.sentences, FIRST_CAPACITY * beam_size
        self._pasts = [
            [memory.new_empty(n, attention.num_heads, room, width) for width in (attention.d_k, attention.d_v)]
            for attention in self._attentions
        ]
        self._memories = [
            [part.contiguous() for part in layer.memory_attention.split_memory(memory, packing)] for layer in layers
        ]
        self._memory_mask = packing.padding_mask
        self._path = torch.empty(n, 0, dtype=torch.int64, device=memory.device)

    def go_on(self, rows: Tensor) -> None:
        """See :class:`Caches`."""
        beam, length = self._beam_size, self._path.shape[1]
        n = len(rows) // beam
        if n < len(self._memory_mask):
            kept = rows[::beam] // (beam if length else 1)
            self._memory_mask = self._memory_mask[kept]
            for parts in (*self._pasts, *self._memories):
                parts[:] = [part[kept] for part in parts]
        own = torch.arange(beam, device=rows.device).repeat(n)
        self._path = torch.cat((self._path[rows], own[:, None]), dim=1)
        if (length + 1) * beam > self._pasts[0][0].shape[2]:
            for parts in self._pasts:
                parts[:] = [torch.cat((part, part), dim=2) for part in parts]
        path = self._path.view(n, beam, length + 1, 1)
        self._visible = (path == torch.arange(beam, device=rows.device)).flatten(2)

    def past(self, layer: int, qkv: Tensor) -> Tensor:
        """See :class:`Caches`."""
        query, *new = (self._by_sentence(part) for part in self._attentions[layer].split(qkv))
        end = self._path.shape[1] * self._beam_size
        for part, written in zip(self._pasts[layer], new, strict=True):
            part[:, :, end - self._beam_size : end] = written
        keys, values = (part[:, :, :end] for part in self._pasts[layer])
        return _by_row(attention_product(query, keys, values, self._visible, causal=False))

    def memory(self, layer: int, q: Tensor) -> Tensor:
        """See :class:`Caches`."""
        keys, values = self._memories[layer]
        query = self._by_sentence(q.view(q.shape[0], *keys.shape[1::2]))
        return _by_row(attention_product(query, keys, values, self._memory_mask, causal=False))

    def _by_sentence(self, heads: Tensor) -> Tensor:
        """``(rows, num_heads, d)`` to ``(n, num_heads, beam_size, d)``: the rows of a sentence are its queries."""
        return heads.view(-1, self._beam_size, *heads.shape[1:]).transpose(1, 2)


def _by_row(out: Tensor) -> Tensor:
    """``(n, num_heads, beam_size, d_v)`` to ``(rows, num_heads * d_v)``."""
    return out.transpose(1, 2).flatten(2).flatten(0, 1)
