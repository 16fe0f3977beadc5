"""Each operation that PyTorch compiles on a GPU, and has a kernel on a CPU: its error against float64, and its time.

The error is the largest difference over the largest value. The reference in the same precision stands beside it. The
product with bias and ReLU in one kernel of cuBLAS is a proposal: the model takes it once a device has shown that it is
faster and keeps NaN.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu.device import describe
from benchmarks.gpu.profiling import format_profile, make_profile
from benchmarks.lib.limits import best_seconds
from benchmarks.lib.tables import format_table
from dstransformer.data.packing import Packing
from dstransformer.model import DTYPES, ops
from dstransformer.model.ops import reference

SMOKE_OPTIONS = "--tokens 64 --pieces 50"

_COLUMNS = "operation | precision | error of the kernel: | error of the reference: | kernel, ms: | reference, ms:"

Operation = Callable[..., Tensor]

#: The kernel's call, that of the reference, one that computes in the precision of its inputs, and the inputs.
Operations = tuple[Operation, Operation, Operation, list[Tensor]]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=8192, help="rows; default: 8192")
    parser.add_argument("--pieces", type=int, default=37_000, help="size of the vocabulary; default: 37000")
    parser.add_argument("--profile", action="store_true", help="profile each kernel too")
    parser.add_argument("--json", type=Path, help="file for the table")


def main(options: argparse.Namespace) -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    compiler = ops.compiler_name() if device.type == "cuda" else "the kernels of the CPU"
    print(f"{describe(device)}; compiled by: {compiler}")
    rows = []
    for name, (kernel, plain, formula, inputs) in _operations(options.tokens, options.pieces, device).items():
        exact = formula(*(one.double() for one in inputs))
        for precision in ("bf16", "fp16", "fp32"):
            given = [one.to(DTYPES[precision]) for one in inputs]
            errors = [_error(operation(*_copies(given)), exact) for operation in (kernel, plain)]
            times = [1000 * best_seconds(partial(one, *given), device) for one in (kernel, plain)]
            rows.append([name, precision, *(f"{error:.1e}" for error in errors), *(f"{one:.3f}" for one in times)])
            if options.profile and precision == "bf16":
                found = make_profile(partial(kernel, *given), 5, device, None)
                print(f"{name}: {format_profile(found, times[0] / 1000)}")
    print(format_table(_COLUMNS, [" | ".join(row) for row in rows]))
    lost = fused_relu(*(torch.full(shape, torch.nan, device=device) for shape in ((8, 16), (16, 16), (16,))))
    print(f"the product with ReLU keeps NaN: {'yes' if bool(lost.isnan().all()) else 'no'}")
    if options.json is not None:
        options.json.write_text(json.dumps({"columns": _COLUMNS, "rows": rows}, indent=1), encoding="utf-8")
    return 0


def fused_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``max(0, x W^T + b)`` by one kernel of cuBLAS."""
    return torch._addmm_activation(bias, x, weight.t())


def _plain_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias).relu()


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    """Copies, because a kernel may write its result over its input."""
    return [tensor.clone() for tensor in tensors]


def _operations(tokens: int, pieces: int, device: torch.device) -> dict[str, Operations]:
    """The operations by name."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        # Rounded, so that every precision gets the same numbers.
        return torch.randn(*shape, generator=generator).bfloat16().float().to(device)

    targets = torch.randint(pieces, (tokens,), generator=generator).to(device)
    heads = ops.HeadShape(8, 64, 64, causal=True)
    packing = Packing.from_lengths([32] * (tokens // 32)).to(device)

    def gradient(call: Callable[..., tuple[Tensor, Tensor, Tensor | None]]) -> Operation:
        def compute(logits: Tensor) -> Tensor:
            found = call(logits, targets, 0.1, 1.0)[2]
            assert found is not None
            return found

        return compute

    def exact_gradient(logits: Tensor) -> Tensor:
        wanted = torch.full_like(logits, 0.1 / pieces).scatter_add_(
            1, targets[:, None], torch.full_like(logits[:, :1], 0.9)
        )
        return logits.softmax(dim=-1) - wanted

    def norm(call: Callable[..., Tensor]) -> Operation:
        return lambda x, y, gain, bias: call(x, y, gain, bias, 1e-6, 0.0)

    def attend(x: Tensor) -> Tensor:
        return ops.attention(x, None, packing, packing, heads, 0.0, "auto")

    def attend_padded(x: Tensor) -> Tensor:
        return reference.attention(x, None, packing, packing, heads, 0.0)

    def choose(call: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Operation:
        def compute(logits: Tensor) -> Tensor:
            best, _, log_sums = call(logits, 2, pieces, 8)
            return best - log_sums[:, None]

        return compute

    loss, plain_loss = gradient(ops.cross_entropy), gradient(reference.cross_entropy)
    summed, plain_sum = norm(ops.residual_norm), norm(reference.residual_norm)
    norm_inputs = [draw(tokens, 512), draw(tokens, 512), draw(512), draw(512)]
    return {
        "loss, gradient": (loss, plain_loss, exact_gradient, [draw(tokens, pieces)]),
        "product, bias, ReLU": (fused_relu, _plain_relu, _plain_relu, [draw(tokens, 512), draw(2048, 512), draw(2048)]),
        "best pieces": (
            choose(ops.best_pieces),
            choose(reference.best_pieces),
            lambda logits: logits.log_softmax(dim=-1)[:, 2:].topk(8).values,
            [draw(tokens, pieces)],
        ),
        "sum and norm": (summed, plain_sum, plain_sum, norm_inputs),
        "attention": (attend, attend_padded, attend_padded, [draw(packing.rows, 3 * 512)]),
    }
