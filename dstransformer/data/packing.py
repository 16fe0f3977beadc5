"""Packed batches: sentences laid end to end, without padding; and the padded layout, where one is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from dstransformer.data import BOS_ID, EOS_ID
from dstransformer.data.plan import Lengths
from dstransformer.data.reader import Int32

#: Maximum number of row counts that batches on a CPU have from one power of two to the next.
ROW_COUNTS = 128

#: Maximum padding of a group of sentences, as a share of its pairs of query and key.
MAX_PADDING = 0.05


@dataclass(frozen=True)
class Packing:
    """The borders of the sentences of a packed batch.

    Attributes:
        cu: Cumulative lengths, ``(n + 1,)`` int32; sentence ``i`` holds the tokens ``cu[i] : cu[i + 1]``.
        max_len: Length of the longest sentence.
        tokens: Number of tokens of the batch, ``cu[-1]``.
    """

    cu: Tensor
    max_len: int
    tokens: int
    _groupings: dict[int, tuple[Packing | None, Grouping]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | npt.NDArray[np.integer]) -> Packing:
        """The packing of sentences of these lengths, at least one sentence; on the CPU."""
        cu = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=cu[1:])
        return cls(torch.from_numpy(cu), int(max(lengths)), int(cu[-1]))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Packing:
        """The packing on another device; as for tensors, ``non_blocking`` does not wait for the copy."""
        return Packing(self.cu.to(device, non_blocking=non_blocking), self.max_len, self.tokens)

    def pin_memory(self) -> Packing:
        """The packing in page-locked memory."""
        return Packing(self.cu.pin_memory(), self.max_len, self.tokens)

    def twice(self) -> Packing:
        """The packing of the same sentences twice, one copy after the other."""
        return Packing(torch.cat((self.cu, self.cu[1:] + self.cu[-1])), self.max_len, 2 * self.tokens)

    @cached_property
    def rows(self) -> int:
        """Rows of the tensors that the model computes with: one per token, then filler that no result depends on.

        On a GPU there is no filler, for a CPU see :func:`round_rows`.
        """
        return round_rows(self.tokens, ROW_COUNTS) if self.cu.device.type == "cpu" else self.tokens

    @property
    def sentences(self) -> int:
        """Number of sentences, ``n``."""
        return self.cu.numel() - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, ``(n,)`` int64."""
        return self.cu.diff().long()

    @cached_property
    def _sentence_of(self) -> Tensor:
        numbers = torch.arange(self.sentences, device=self.cu.device)
        return numbers.repeat_interleave(self.lengths, output_size=self.tokens)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its sentence, from 0, ``(tokens,)`` int64."""
        return torch.arange(self.tokens, device=self.cu.device) - self.cu[:-1].long()[self._sentence_of]

    @cached_property
    def padded_index(self) -> Tensor:
        """Row of each token in the padded layout ``(n * max_len, ...)``, ``(tokens,)`` int64."""
        return self._sentence_of * self.max_len + self.positions

    @cached_property
    def padding_mask(self) -> Tensor:
        """True where the padded layout holds a token, ``(n, max_len)``."""
        return torch.arange(self.max_len, device=self.cu.device) < self.lengths[:, None]

    def fill(self, packed: Tensor) -> Tensor:
        """``(tokens, …)`` to ``(rows, …)``, with zeros for filler."""
        return fill_rows(packed, self.rows)

    def pad(self, packed: Tensor) -> Tensor:
        """``(tokens, width)`` to ``(n, max_len, width)``, with zeros after each sentence."""
        padded: Tensor = _Pad.apply(packed, self.padded_index, self.sentences * self.max_len)  # type: ignore[no-untyped-call]
        return padded.view(self.sentences, self.max_len, packed.shape[1])

    def group(self, keys: Packing) -> Grouping:
        """Groups of sentences of similar length, for attention to ``keys``; computed once for each ``keys``."""
        if id(keys) not in self._groupings:
            groups = group_lengths(self.lengths.tolist(), keys.lengths.tolist())
            grouping = Grouping(Order(self, groups), Order(keys, groups))
            # Keep `keys` alive so that its id is not reused; but not `self`, which would be a reference cycle.
            self._groupings[id(keys)] = (None if keys is self else keys), grouping
        return self._groupings[id(keys)][1]

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of :meth:`pad`: ``(n, max_len, width)`` to ``(tokens, width)``."""
        rows = padded.reshape(self.sentences * self.max_len, padded.shape[2])
        packed: Tensor = _Unpad.apply(rows, self.padded_index)  # type: ignore[no-untyped-call]
        return packed


class Order:
    """The tokens of a packed batch, rearranged so that the sentences of a group are next to each other.

    Attributes:
        groups: The packing of each group.
    """

    def __init__(self, packing: Packing, groups: Sequence[Sequence[int]]) -> None:
        lengths = packing.lengths.tolist()
        self.groups = [Packing.from_lengths([lengths[number] for number in group]) for group in groups]
        numbers = torch.tensor([number for group in groups for number in group])
        moved = Packing.from_lengths([lengths[number] for group in groups for number in group])
        self._rows = packing.cu[:-1].long()[numbers][moved._sentence_of] + moved.positions
        self._back = torch.empty_like(self._rows).scatter_(0, self._rows, torch.arange(packing.tokens))

    def split(self, packed: Tensor) -> tuple[Tensor, ...]:
        """``(rows, width)`` to the ``(tokens, width)`` of each group."""
        moved: Tensor = _Unpad.apply(packed, self._rows)  # type: ignore[no-untyped-call]
        return torch.split(moved, [group.tokens for group in self.groups])

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of :meth:`split`, without filler."""
        joined: Tensor = _Unpad.apply(torch.cat(list(parts)), self._back)  # type: ignore[no-untyped-call]
        return joined


@dataclass(frozen=True)
class Grouping:
    """The queries and keys of the same sentences, in the same groups."""

    queries: Order
    keys: Order


def round_rows(rows: int, counts: int) -> int:
    """Round up to one of few row counts: by less than ``1 / counts``, or by up to 7 rows where rows are few.

    oneDNN generates code for each number of rows, and for bf16 it never frees that code: every new number costs time
    and memory.

    Args:
        rows: 0 or more.
        counts: Maximum number of results from one power of two to the next; a power of two.
    """
    step = max(8, (1 << max(rows, 1).bit_length() - 1) // counts)
    return -(-rows // step) * step


def fill_rows(tensor: Tensor, rows: int) -> Tensor:
    """Append rows of zeros to a tensor until it has ``rows``."""
    missing = rows - tensor.shape[0]
    assert missing >= 0
    return F.pad(tensor, (*(0, 0) * (tensor.dim() - 1), 0, missing)) if missing else tensor


def group_lengths(queries: Sequence[int], keys: Sequence[int]) -> list[list[int]]:
    """Group sentences so that padding a group to its longest adds at most ``MAX_PADDING``.

    Args:
        queries: Number of queries of each sentence.
        keys: Number of keys of each sentence.

    Returns:
        The sentences of each group, by their place in ``queries``.
    """
    groups: list[list[int]] = []
    max_queries = max_keys = real = 0
    for number in sorted(range(len(queries)), key=lambda n: (queries[n], keys[n])):
        pairs = queries[number] * keys[number]
        max_queries, max_keys = max(max_queries, queries[number]), max(max_keys, keys[number])
        real += pairs
        if not groups or max_queries * max_keys * (len(groups[-1]) + 1) > (1.0 + MAX_PADDING) * real:
            groups.append([])
            max_queries, max_keys, real = queries[number], keys[number], pairs
        groups[-1].append(number)
    return groups


def _scatter_rows(rows: Tensor, index: Tensor, total: int) -> Tensor:
    return rows.new_zeros(total, rows.shape[1]).index_copy_(0, index, rows)


class _Pad(torch.autograd.Function):
    """Scatter rows; no two go to the same place, so the gradient is a gather."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, index: Tensor, total: int) -> Tensor:
        ctx.save_for_backward(index)
        return _scatter_rows(packed, index, total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


class _Unpad(torch.autograd.Function):
    """Gather rows, none of them twice, so the gradient is a scatter without sums."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.total = padded.shape[0]
        return padded.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return _scatter_rows(grad, index, ctx.total), None


@dataclass(frozen=True)
class Links:
    """The alignments of those sentence pairs of a packed batch that have any.

    Attributes:
        src_rows: The rows of their source tokens in the batch, ``(src_tokens,)`` int64.
        src_packing: Their source sentences.
        tgt_rows: The rows of their target tokens, ``(tgt_tokens,)`` int64.
        tgt_packing: Their target sentences.
        places: Where in the weights ``(n, tgt_packing.max_len, src_packing.max_len)``, flattened, each pair of linked
            tokens is, ``(pairs,)`` int64.
        shares: 1 over the number of source tokens that the target token of each pair is linked to, ``(pairs,)`` fp32.
    """

    src_rows: Tensor
    src_packing: Packing
    tgt_rows: Tensor
    tgt_packing: Packing
    places: Tensor
    shares: Tensor

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Links:
        """The links on another device; as for tensors, ``non_blocking`` does not wait for the copies."""
        return Links(*(getattr(self, one.name).to(device, non_blocking=non_blocking) for one in fields(self)))

    def pin_memory(self) -> Links:
        """The links in page-locked memory."""
        return Links(*(getattr(self, one.name).pin_memory() for one in fields(self)))


class PackedBatch(NamedTuple):
    """Sentence pairs: the arguments of the loss, ``Objective.forward``, in its order.

    Attributes:
        src: Source tokens, each sentence with its end, ``(src_tokens,)`` int64.
        src_packing: The source sentences.
        tgt_in: The decoder's input, each target after the begin token, ``(tgt_tokens,)`` int64.
        tgt_out: The tokens to predict, each target with its end, ``(tgt_tokens,)`` int64.
        tgt_packing: The target sentences.
        links: The alignments that guide a head; None without.
    """

    src: Tensor
    src_packing: Packing
    tgt_in: Tensor
    tgt_out: Tensor
    tgt_packing: Packing
    links: Links | None = None

    def to(self, device: torch.device) -> PackedBatch:
        """The batch on another device; the copy from pinned memory overlaps with computation."""
        return PackedBatch(*(one if one is None else one.to(device, non_blocking=True) for one in self))  # type: ignore[arg-type]

    def pin_memory(self) -> PackedBatch:
        """The batch in page-locked memory."""
        return PackedBatch(*(one if one is None else one.pin_memory() for one in self))  # type: ignore[arg-type]


def pack_pairs(src_ids: Int32, src_lengths: Lengths, tgt_ids: Int32, tgt_lengths: Lengths) -> PackedBatch:
    """Pack sentence pairs, whose tokens and lengths come without begin and end."""
    return PackedBatch(
        src=pack(src_ids, src_lengths, last=EOS_ID),
        src_packing=Packing.from_lengths(src_lengths + 1),
        tgt_in=pack(tgt_ids, tgt_lengths, first=BOS_ID),
        tgt_out=pack(tgt_ids, tgt_lengths, last=EOS_ID),
        tgt_packing=Packing.from_lengths(tgt_lengths + 1),
    )


def pack(ids: Int32, lengths: Lengths, *, first: int | None = None, last: int | None = None) -> Tensor:
    """Put one special token before or after each sentence: ``(tokens,)`` to ``(tokens + n,)`` int64."""
    special = first if first is not None else last
    assert special is not None
    packed = np.full(len(ids) + len(lengths), special, dtype=np.int64)
    ends = np.cumsum(lengths + 1, dtype=np.int64)
    is_special = np.zeros(len(packed), dtype=bool)
    is_special[ends - 1 if first is None else ends - lengths - 1] = True
    packed[~is_special] = ids
    return torch.from_numpy(packed)
