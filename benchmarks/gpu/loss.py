"""The loss through the softmax matrix, forward and backward: ours, PyTorch's and Liger's.

What is not installed, or cannot run on the device, is a row that says why. PyTorch's computes in chunks without label
smoothing only, so it computes another loss, and its errors are to that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu.device import describe
from benchmarks.lib.limits import best_seconds
from benchmarks.lib.tables import format_table
from dstransformer.model.loss import smoothed_cross_entropy

_COLUMNS = "loss by | relative error: | relative error of the gradients: | forward and backward, ms: | peak, GiB:"

_SMOOTHING = 0.1

#: Hidden states, softmax matrix, targets and label smoothing; the sum of the losses.
Loss = Callable[[Tensor, Tensor, Tensor, float], Tensor]

#: Hidden states, softmax matrix, targets and label smoothing.
Inputs = tuple[Tensor, Tensor, Tensor, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=24_576, help="target tokens; default: 24576")
    parser.add_argument("--pieces", type=int, default=37_000, help="size of the vocabulary; default: 37000")
    parser.add_argument("--width", type=int, default=512, help="d_model; default: 512")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--json", type=Path, help="file for the table")


def main(options: argparse.Namespace) -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens, pieces, width = (64, 50, 32) if options.smoke else (options.tokens, options.pieces, options.width)
    print(f"{describe(device)}; bf16, {tokens:,} tokens, {pieces:,} pieces, width {width}")
    torch.manual_seed(1)
    hidden = torch.randn(tokens, width, device=device).bfloat16()
    weight = (torch.randn(pieces, width, device=device) * width**-0.5).bfloat16().float()
    targets = torch.randint(pieces, (tokens,), device=device)
    exact = {smoothing: _run(_plain, hidden.float(), weight, targets, smoothing) for smoothing in (0.0, _SMOOTHING)}
    rows = []
    for name, (build, smoothing) in VARIANTS.items():
        try:
            rows.append(f"{name} | {_measure(build(), exact[smoothing], (hidden, weight, targets, smoothing), device)}")
        except Exception as error:
            rows.append(f"{name} | {type(error).__name__}: {str(error).splitlines()[0][:90]} | - | - | -")
    print(format_table(_COLUMNS, rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"columns": _COLUMNS, "rows": rows}, indent=1), encoding="utf-8")
    return 0


def _measure(loss: Loss, exact: list[Tensor], inputs: Inputs, device: torch.device) -> str:
    found = _run(loss, *inputs)
    errors = [float((one.float() - other).norm() / other.norm()) for one, other in zip(found, exact, strict=True)]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = best_seconds(lambda: _run(loss, *inputs), device)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    return f"{errors[0]:.1e} | {max(errors[1:]):.1e} | {1000 * seconds:.2f} | {peak:.1f}"


def _run(loss: Loss, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> list[Tensor]:
    """The loss, and the gradients of hidden states and softmax matrix."""
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    total = loss(hidden, weight, targets, smoothing)
    return [total.detach(), *torch.autograd.grad(total, [hidden, weight])]


def _ours() -> Loss:
    return lambda *inputs: smoothed_cross_entropy(*inputs)[0]


def _plain(hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    logits = F.linear(hidden, weight.to(hidden.dtype))
    return F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=smoothing)


def _pytorch() -> Loss:
    function: Any = getattr(F, "linear_cross_entropy", None)
    if function is None:
        raise RuntimeError(f"PyTorch {torch.__version__} has no F.linear_cross_entropy")
    chunks = torch.nn.LinearCrossEntropyOptions()
    return lambda hidden, weight, targets, smoothing: function(
        hidden, weight.to(hidden.dtype), targets, reduction="sum", label_smoothing=smoothing, options=chunks
    )


def _liger() -> Loss:
    function: Any = import_module("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy
    return lambda hidden, weight, targets, smoothing: function(
        hidden, weight.to(hidden.dtype), targets, reduction="sum", label_smoothing=smoothing
    )


VARIANTS: dict[str, tuple[Callable[[], Loss], float]] = {
    "ours": (_ours, _SMOOTHING),
    "logits at once": (lambda: _plain, _SMOOTHING),
    "F.linear_cross_entropy, unsmoothed": (_pytorch, 0.0),
    "Liger": (_liger, _SMOOTHING),
}
