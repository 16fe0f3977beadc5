"""The weights of a bundle as other tools hold them: one matrix per projection, and heads of one width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from dstransformer.config import DecodingConfig, ModelConfig

Weights = Mapping[str, Tensor]


class Affine(NamedTuple):
    """``x W^T + b``, or a norm with gain ``weight``."""

    weight: Tensor
    bias: Tensor


class Attention(NamedTuple):
    """The projections of an attention; each head of q, k and v is equally wide."""

    q: Affine
    k: Affine
    v: Affine
    out: Affine


def affine(weights: Weights, name: str, *, has_bias: bool = True) -> Affine:
    """A matrix or a norm, by the name of the module. Zeros stand for the bias of one that has none."""
    weight = weights[f"{name}.weight"]
    return Affine(weight, weights[f"{name}.bias"] if has_bias else weight.new_zeros(weight.shape[0]))


def attention(weights: Weights, name: str, config: ModelConfig, width: int) -> Attention:
    """The attention of a layer with heads ``width`` wide, which is at least ``d_k`` and ``d_v``.

    Narrower heads are filled with zeros. The queries grow by ``sqrt(width / d_k)``, because the other side divides
    their products by ``sqrt(width)``.
    """
    heads, d_k, d_v, has_bias = config.num_heads, config.d_k, config.d_v, config.attention_bias
    key, value = heads * d_k, heads * d_v
    if f"{name}.qkv.weight" in weights:
        q, k, v = _split(affine(weights, f"{name}.qkv", has_bias=has_bias), key, key, value)
    else:
        q = affine(weights, f"{name}.q", has_bias=has_bias)
        k, v = _split(affine(weights, f"{name}.kv", has_bias=has_bias), key, value)
    grown = q if width == d_k else Affine(*(part * math.sqrt(width / d_k) for part in q))
    out = affine(weights, f"{name}.out", has_bias=has_bias)
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
