"""What the Triton kernels of attention compute, compared with the reference: see :mod:`support.models.gpu_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dstransformer.data.packing import Packing
from dstransformer.model.ops import gpu_attention, reference
from dstransformer.model.ops.reference import HeadShape
from support.models.gpu_rows import poisoned_memory
from support.models.numerics import assert_near

Kind = Literal["self", "causal", "memory"]

#: Largest error over the largest value: weights are rounded before they are multiplied, and results once more.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}
#: The interpreter cuts off bf16.
INTERPRETED = {**TOLERANCE, torch.bfloat16: 2**-5}


def draw_projections(
    dtype: torch.dtype, kind: Kind, lengths: Sequence[int], shape: HeadShape, device: str
) -> tuple[list[Tensor], Packing, Packing]:
    """Projections that need gradients, and the sentences of the queries and of the keys."""
    generator = torch.Generator().manual_seed(sum(lengths))
    packing = Packing.from_lengths(lengths).to(device)
    keys = Packing.from_lengths(lengths[::-1]).to(device) if kind == "memory" else packing
    widths = [shape.d_k, shape.d_k + shape.d_v] if kind == "memory" else [2 * shape.d_k + shape.d_v]
    given = [
        torch.randn(rows, shape.heads * width, generator=generator).to(dtype).to(device).requires_grad_()
        for rows, width in zip((packing.rows, keys.rows), widths, strict=False)
    ]
    return given, packing, keys


def check_attention(
    dtype: torch.dtype, kind: Kind, lengths: Sequence[int], heads: int, d_k: int, d_v: int, device: str = "cpu"
) -> None:
    """Results and gradients equal those of the reference in fp64, and are 0 for filler."""
    shape = HeadShape(heads, d_k, d_v, kind == "causal")
    given, packing, keys = draw_projections(dtype, kind, lengths, shape, device)
    exact = [x.detach().double().requires_grad_() for x in given]
    grad = torch.randn(packing.rows, heads * d_v, generator=torch.Generator().manual_seed(1)).to(dtype).to(device)
    with poisoned_memory():
        out = gpu_attention.attention(*_pair(given), packing, keys, shape)
        found = [out, *torch.autograd.grad(out, given, grad)]
    expected = reference.attention(*_pair(exact), packing, keys, shape, 0.0)
    true = [expected, *torch.autograd.grad(expected, exact, grad.double())]
    for ours, theirs, rows in zip(found, true, (packing, packing, keys), strict=False):
        assert ours.dtype == dtype
        assert ours.is_contiguous()
        assert not ours[rows.tokens :].any()
        assert_near(ours.double(), theirs, (TOLERANCE if ours.is_cuda else INTERPRETED)[dtype])


def check_computed_again(kind: Kind, compiled: bool, device: str = "cpu") -> None:
    """Activation checkpointing changes no bit; nor does ``torch.compile``, which sees attention as two operators."""
    shape = HeadShape(2, 16, 8, causal=False)
    given, packing, keys = draw_projections(torch.float32, kind, [3, 34], shape, device)

    def attend(*projections: Tensor) -> Tensor:
        return gpu_attention.attention(*_pair(projections), packing, keys, shape)

    def checkpointed(*projections: Tensor) -> Tensor:
        out: Tensor = checkpoint(attend, *projections, use_reentrant=False)
        return out

    again = torch.compile(attend, backend="aot_eager", fullgraph=True) if compiled else checkpointed
    outs = [attend(*given), again(*given)]
    first, second = ((out, *torch.autograd.grad(out.square().sum(), given)) for out in outs)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def _pair(projections: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    return projections[0], projections[1] if len(projections) > 1 else None
