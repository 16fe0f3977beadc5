"""One layer of each type in the paper's Table 1, ready for a forward and a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dstransformer.extras.paper import table1_formulas as formulas
from dstransformer.extras.paper.table1_formulas import Size, window


@dataclass(frozen=True)
class Layer:
    """A layer with its inputs.

    Attributes:
        forward: Computes the output.
        leaves: Inputs and weights; the backward pass computes the gradient of each.
    """

    forward: Callable[[], Tensor]
    leaves: tuple[Tensor, ...]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``softmax(q k^T / sqrt(d)) v`` (equation 1) with one head, step by step: the n² weights are stored.

    Args:
        q: ``(batch, n, d)``.
        k: ``(batch, n, d)``.
        v: ``(batch, n, d)``.

    Returns:
        ``(batch, n, d)``.
    """
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    attended: Tensor = scores.softmax(dim=-1) @ v
    return attended


def restricted_attention(q: Tensor, k: Tensor, v: Tensor, r: int) -> Tensor:
    """Attention of each position to the ``r`` positions around it (section 4), in O(r·n·d).

    Queries are cut into blocks of ``r``. A block's windows lie within ``2 r - 1`` keys, which are a view of the padded
    keys. Scores outside of a window, about half, are computed and masked.

    Args:
        q: ``(batch, n, d)``.
        k: ``(batch, n, d)``.
        v: ``(batch, n, d)``.
        r: The size of the window, see :func:`dstransformer.extras.paper.table1_formulas.window`.

    Returns:
        ``(batch, n, d)``.
    """
    batch, n, d = q.shape
    before, after = window(r)
    blocks = -(-n // r)
    rest = blocks * r - n
    queries = F.pad(q, (0, 0, 0, rest)).view(batch, blocks, r, d)
    keys = F.pad(k, (0, 0, before, rest + after)).unfold(1, 2 * r - 1, r)  # (batch, blocks, d, 2 r - 1)
    values = F.pad(v, (0, 0, before, rest + after)).unfold(1, 2 * r - 1, r)
    scores = (queries @ keys * d**-0.5).masked_fill(_outside(n, r, q.device), float("-inf"))
    out: Tensor = scores.softmax(dim=-1) @ values.transpose(-2, -1)
    return out.view(batch, blocks * r, d)[:, :n]


@lru_cache(maxsize=2)
def _outside(n: int, r: int, device: torch.device) -> Tensor:
    """``(blocks, r, 2 r - 1)``: which keys a query does not see. Queries that are padding see padding."""
    before, _ = window(r)
    blocks = -(-n // r)
    query = torch.arange(r, device=device)[None, :, None]
    key = torch.arange(2 * r - 1, device=device)[None, None, :]
    start = torch.arange(blocks, device=device)[:, None, None] * r
    position = start + key - before
    is_padding = ((position < 0) | (position >= n)) & (start + query < n)
    return (key < query) | (key >= query + r) | is_padding


def build_layer(kind: formulas.LayerType, size: Size, batch: int, device: torch.device) -> Layer:
    """Build a layer of a type with random fp32 inputs and weights.

    Self-attention is the operation that the paper's table counts, on given queries, keys and values. The recurrent
    layer is ``nn.RNN`` (tanh), the convolution is causal; no layer has biases.

    Args:
        kind: One of :data:`dstransformer.extras.paper.table1_formulas.LAYER_TYPES`.
        size: Its size.
        batch: Number of sequences.
        device: Where to compute.
    """
    return _BUILDERS[kind.name](size, batch, device)


def _inputs(count: int, size: Size, batch: int, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.randn(batch, size.n, size.d, device=device, requires_grad=True) for _ in range(count))


def _self_attention(size: Size, batch: int, device: torch.device) -> Layer:
    q, k, v = _inputs(3, size, batch, device)
    return Layer(lambda: attention(q, k, v), (q, k, v))


def _projected_attention(size: Size, batch: int, device: torch.device) -> Layer:
    (x,) = _inputs(1, size, batch, device)
    project_in = nn.Linear(size.d, 3 * size.d, bias=False, device=device)
    project_out = nn.Linear(size.d, size.d, bias=False, device=device)
    return Layer(
        lambda: project_out(attention(*project_in(x).chunk(3, dim=-1))),
        (x, project_in.weight, project_out.weight),
    )


def _restricted_attention(size: Size, batch: int, device: torch.device) -> Layer:
    q, k, v = _inputs(3, size, batch, device)
    return Layer(lambda: restricted_attention(q, k, v, size.r), (q, k, v))


def _recurrent(size: Size, batch: int, device: torch.device) -> Layer:
    (x,) = _inputs(1, size, batch, device)
    layer = nn.RNN(size.d, size.d, bias=False, batch_first=True, device=device)
    return Layer(lambda: layer(x)[0], (x, *layer.parameters()))


def _convolutional(size: Size, batch: int, device: torch.device) -> Layer:
    x = torch.randn(batch, size.d, size.n, device=device, requires_grad=True)
    layer = nn.Conv1d(size.d, size.d, size.k, padding=size.k - 1, bias=False, device=device)
    return Layer(lambda: layer(x)[..., : size.n], (x, *layer.parameters()))


_BUILDERS: Mapping[str, Callable[[Size, int, torch.device], Layer]] = {
    formulas.SELF_ATTENTION.name: _self_attention,
    formulas.PROJECTED_ATTENTION.name: _projected_attention,
    formulas.RESTRICTED_ATTENTION.name: _restricted_attention,
    formulas.RECURRENT.name: _recurrent,
    formulas.CONVOLUTIONAL.name: _convolutional,
}
