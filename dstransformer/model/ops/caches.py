"""The caches of incremental decoding: keys and values of the output so far, and of the memory, in all decoder layers.

Cached keys and values stay where they were written, and each row remembers where on its path they are. So reordering
hypotheses moves a few integers and not the caches.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from dstransformer.data.packing import Packing
from dstransformer.model.ops.cpu import attend_memory, attend_path
from dstransformer.model.ops.reference import HeadShape, additive_mask, attention_product, split_heads

#: Initial capacity of a padded cache, in positions, a multiple of 8 for the mask; it doubles when it is full.
FIRST_CAPACITY = 32


class PackedCaches:
    """Without padding, by compiled kernels. Keys and values stay in the output of each step's projection.

    The path of a row is the number of its row at each position, ``(rows, length)``.

    Args:
        memories: For each layer the keys and values of the memory, ``(packing.rows, heads * (d_k + d_v))``.
        packing: The sentences of the memory.
        shape: The shape of the heads.

    Attributes:
        ragged: A sentence may have any number of rows. Otherwise it has ``beam_size`` from the first step on.
    """

    ragged = True

    def __init__(self, memories: Iterable[Tensor], packing: Packing, shape: HeadShape) -> None:
        self._shape = shape._replace(causal=False)
        self._memories = list(memories)
        self._pasts: list[list[Tensor]] = [[] for _ in self._memories]
        self._cu = packing.cu
        self._sentences = torch.arange(packing.sentences)  # of each row
        self._path = torch.empty(packing.sentences, 0, dtype=torch.int32)

    def advance(self, rows: Tensor) -> None:
        """Begin a position; see :meth:`dstransformer.model.incremental.IncrementalDecoder.step`."""
        self._sentences = self._sentences[rows]
        self._path = torch.cat((self._path[rows], torch.arange(len(rows), dtype=torch.int32)[:, None]), dim=1)
        sentences, counts = torch.unique_consecutive(self._sentences, return_counts=True)
        self._row_cu = torch.cat((counts.new_zeros(1), counts)).cumsum(0).int()
        self._begins, self._ends = self._cu[sentences], self._cu[sentences + 1]

    def attend_past(self, layer: int, qkv: Tensor) -> Tensor:
        """Add a position to every row, and attend to all positions on its path.

        Args:
            layer: Number of the layer.
            qkv: Query, key and value, ``(rows, heads * (2 * d_k + d_v))``.

        Returns:
            ``(rows, heads * d_v)``.
        """
        self._pasts[layer].append(qkv.contiguous())
        return attend_path(self._pasts[layer], self._path, self._shape)

    def attend_memory(self, layer: int, q: Tensor) -> Tensor:
        """Attend to the memory: queries ``(rows, heads * d_k)`` to ``(rows, heads * d_v)``."""
        return attend_memory(q, self._memories[layer], self._row_cu, self._begins, self._ends, self._shape)


class PaddedCaches:
    """In plain PyTorch: the rows of a sentence attend together to everything that they have written.

    A mask hides what is not on a row's path. It is built once a step, as what attention adds to its scores.

    Keys and values of a layer are ``(n, heads, capacity * beam_size, d)``; position ``t`` of row ``b`` of a sentence is
    at ``t * beam_size + b``. The path of a row is its ``b`` at each position, ``(n * beam_size, capacity)``.

    Args:
        memories: For each layer the keys and values of the memory, ``(packing.rows, heads * (d_k + d_v))``.
        packing: The sentences of the memory.
        shape: The shape of the heads.
        beam_size: Rows per sentence.
    """

    ragged = False

    def __init__(self, memories: Iterable[Tensor], packing: Packing, shape: HeadShape, beam_size: int) -> None:
        self._shape = shape
        self._beam_size = beam_size
        heads, d_k, d_v, _ = shape
        self._memories = [
            [
                part.transpose(1, 2).contiguous()
                for part in split_heads(packing.pad(memory[: packing.tokens]), heads, d_k, d_v)
            ]
            for memory in memories
        ]
        first, n, capacity = self._memories[0][0], packing.sentences, FIRST_CAPACITY * beam_size
        self._pasts = [
            [part.new_empty(n, heads, capacity, part.shape[-1]) for part in memory] for memory in self._memories
        ]
        self._memory_mask = additive_mask(packing.padding_mask[:, None], first.dtype)
        self._length = 0
        self._path = torch.zeros(n, FIRST_CAPACITY, dtype=torch.int64, device=first.device)
        self._numbers = torch.arange(beam_size, device=first.device)
        # For each row of a sentence what hides the others.
        self._hiding = first.new_full((beam_size, beam_size), float("-inf")).fill_diagonal_(0.0)

    def advance(self, rows: Tensor) -> None:
        """See :meth:`PackedCaches.advance`."""
        beam, length = self._beam_size, self._length
        n = len(rows) // beam
        if n < len(self._memory_mask):
            kept = rows[::beam] // (beam if length else 1)
            self._memory_mask = self._memory_mask[kept]
            for parts in (*self._pasts, *self._memories):
                parts[:] = [part[kept] for part in parts]
        self._path = self._path[rows]
        if length == self._path.shape[1]:
            self._path = torch.cat((self._path, self._path), dim=1)
            for parts in self._pasts:
                parts[:] = [torch.cat((part, part), dim=2) for part in parts]
        self._path.view(n, beam, -1)[:, :, length] = self._numbers
        self._length += 1
        self._visible = F.embedding(self._path, self._hiding).view(n, beam, -1)

    def attend_past(self, layer: int, qkv: Tensor) -> Tensor:
        """See :meth:`PackedCaches.attend_past`."""
        heads, d_k, d_v, _ = self._shape
        query, *new = (self._by_sentence(part) for part in split_heads(qkv, heads, d_k, d_k, d_v))
        end = self._length * self._beam_size
        for part, written in zip(self._pasts[layer], new, strict=True):
            part[:, :, end - self._beam_size : end] = written
        keys, values = (part[:, :, :end] for part in self._pasts[layer])
        return _by_row(attention_product(query, keys, values, self._visible[:, :, :end], causal=False))

    def attend_memory(self, layer: int, q: Tensor) -> Tensor:
        """See :meth:`PackedCaches.attend_memory`."""
        keys, values = self._memories[layer]
        query = self._by_sentence(q.view(q.shape[0], self._shape.heads, self._shape.d_k))
        mask = self._memory_mask[:, :, : keys.shape[2]]
        return _by_row(attention_product(query, keys, values, mask, causal=False))

    def _by_sentence(self, heads: Tensor) -> Tensor:
        """``(rows, heads, d)`` to ``(n, heads, beam_size, d)``: the rows of a sentence are its queries."""
        return heads.view(-1, self._beam_size, *heads.shape[1:]).transpose(1, 2)


def _by_row(out: Tensor) -> Tensor:
    """``(n, heads, beam_size, d_v)`` to ``(rows, heads * d_v)``."""
    return out.transpose(1, 2).flatten(2).flatten(0, 1)
