"""The best pieces of each row of logits on a GPU: one Triton kernel, which reads the logits once.

PyTorch's operators read them several times and write them in fp32. A program takes a whole row, because few pieces of
a block are better than the best of those before it: choosing them costs less than a second kernel would.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from dstransformer.model.ops.gpu_best_kernels import best_pieces_kernel
from dstransformer.model.ops.gpu_library import register

#: Logits that a program reads at once. So 8 warps need few enough registers that four programs share a multiprocessor,
#: of which some read while others choose.
BLOCK, WARPS = 2048, 8


def best_pieces(logits: Tensor, first: int, end: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logits of each row, NaN first; among equal ones the first pieces win, and 0 is more than -0."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.dstransformer.best_pieces(logits.contiguous(), first, end, count)
    return found


def launch_best_pieces(logits: Tensor, first: int, end: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, pieces and log-sums, as ``dispatch.best_pieces`` states them."""
    results = _empty_results(logits, first, end, count)
    rows, pieces = logits.shape
    if rows:
        step = math.gcd(pieces, 16)
        best_pieces_kernel[(rows,)](
            logits, *results, first, end, pieces // step, count,
            STEP=step, BLOCK=min(BLOCK, triton.next_power_of_2(pieces)), SLOTS=triton.next_power_of_2(count),
            num_warps=WARPS,
        )  # fmt: skip
    return results


def _empty_results(logits: Tensor, _first: int, _end: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    best = logits.new_empty((len(logits), count), dtype=torch.float32)
    return best, torch.empty_like(best, dtype=torch.int64), best.new_empty(len(logits))


register(
    "best_pieces(Tensor logits, int first, int end, int count) -> (Tensor, Tensor, Tensor)",
    launch_best_pieces,
    _empty_results,
)
