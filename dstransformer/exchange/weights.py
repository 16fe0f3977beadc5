"""The weights of a bundle as other tools hold them: one matrix per projection, and heads of one width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from dstransformer.config import DecodingConfig, ModelConfig
from dstransformer.model import Bundle

Weights = Mapping[str, Tensor]

#: What to do if an export fills the disk.
FULL_ADVICE = "make room, then give the same command"


class Affine(NamedTuple):
    """``x W^T + b``, or a norm with gain ``weight``; a bias of zeros if the model has none."""

    weight: Tensor
    bias: Tensor


class Attention(NamedTuple):
    """The projections of an attention; each head of q, k and v is equally wide."""

    q: Affine
    k: Affine
    v: Affine
    out: Affine


def check_translates(bundle: Bundle) -> None:
    """Refuse a parser.

    Raises:
        DataError: The bundle is a parser: other tools lack its constraint.
    """
    bundle.check_translates(
        "its outputs are trees only under the constraint of `dst parse`, which other tools lack; export a translation "
        "model"
    )


def affine(weights: Weights, name: str) -> Affine:
    """A matrix or a norm with its bias, by the name of the module."""
    weight = weights[f"{name}.weight"]
    return Affine(weight, weights.get(f"{name}.bias", weight.new_zeros(weight.shape[0])))


def attention(weights: Weights, name: str, config: ModelConfig, width: int) -> Attention:
    """The attention of a layer with heads ``width`` wide, which is at least ``d_k`` and ``d_v``.

    Narrower heads are filled with zeros. The queries grow by ``sqrt(width / d_k)``, because the other side divides
    their products by ``sqrt(width)``.
    """
    heads, d_k, d_v = config.num_heads, config.d_k, config.d_v
    key, value = heads * d_k, heads * d_v
    if f"{name}.qkv.weight" in weights:
        q, k, v = _split(affine(weights, f"{name}.qkv"), key, key, value)
    else:
        q = affine(weights, f"{name}.q")
        k, v = _split(affine(weights, f"{name}.kv"), key, value)
    grown = q if width == d_k else Affine(*(part * math.sqrt(width / d_k) for part in q))
    out = affine(weights, f"{name}.out")
    return Attention(
        _widen(grown, heads, width),
        _widen(k, heads, width),
        _widen(v, heads, width),
        Affine(_widen_rows(out.weight.t(), heads, width).t().contiguous(), out.bias),
    )


def _split(fused: Affine, *widths: int) -> list[Affine]:
    parts = zip(torch.split(fused.weight, list(widths)), torch.split(fused.bias, list(widths)), strict=True)
    return [Affine(*part) for part in parts]


def _widen(projection: Affine, heads: int, width: int) -> Affine:
    return Affine(*(_widen_rows(part, heads, width) for part in projection))


def _widen_rows(rows: Tensor, heads: int, width: int) -> Tensor:
    """``(heads * d, …)`` to ``(heads * width, …)``: each head ends in rows of zeros."""
    by_head = rows.reshape(heads, -1, *rows.shape[1:])
    wide = by_head.new_zeros(heads, width, *rows.shape[1:])
    wide[:, : by_head.shape[1]] = by_head
    return wide.flatten(0, 1)


#: Output length, end included, at which both weigh one more token alike.
USUAL_LENGTH = 20


def length_exponent(search: DecodingConfig) -> float:
    """The power of the length that is nearest to our penalty; without an offset it is the same."""
    return search.length_penalty * USUAL_LENGTH / (search.length_offset + USUAL_LENGTH)
