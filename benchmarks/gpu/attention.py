"""Attention within packed sentences as short as those of WMT14, forward and backward, by each implementation.

The error is that of results and gradients in bf16 against padded attention in fp32, by norm. What cannot run is a row
that says why.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu.cases import SMOKE, Case, Work
from benchmarks.gpu.device import describe
from benchmarks.gpu.text import build_updates
from benchmarks.lib.limits import best_seconds
from benchmarks.lib.tables import format_table
from dstransformer.data.packing import PackedBatch, Packing
from dstransformer.data.plan import build_budget
from dstransformer.model import ops
from dstransformer.model.ops import reference, varlen

_COLUMNS = "batch | attention | by | relative error: | forward, ms: | forward and backward, ms:"

_WARM_UP, _ROUNDS = 3, 20

#: Cycles that the device waits, about 2 ms, so that the host has queued the work before it begins.
_HEAD_START = 4_000_000

#: Queries with or without keys and values, keys with values or None, the sentences of both, and the heads; see
#: :func:`dstransformer.model.ops.attention`.
Attention = Callable[[Tensor, Tensor | None, Packing, Packing, ops.HeadShape], Tensor]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="base", help="the preset, for the heads and the updates; default: base")
    parser.add_argument(
        "--micro-batches",
        type=int,
        nargs="+",
        default=[1, 8],
        help="parts of an update by length; default: 1 8",
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; on a CPU, where only padded attention runs")
    parser.add_argument("--json", type=Path, help="file for the table")


def main(options: argparse.Namespace) -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(describe(device))
    rows = []
    for name, batch, heads in _batches(options):
        src, tgt = batch.src_packing.to(device), batch.tgt_packing.to(device)
        for kind, packing, keys in (("self", src, src), ("causal", tgt, tgt), ("memory", tgt, src)):
            shape = ops.HeadShape(*heads, causal=kind == "causal")
            rows += [[name, kind, *cells] for cells in _compare(kind == "memory", packing, keys, shape, device)]
    print(format_table(_COLUMNS, [" | ".join(row) for row in rows]))
    if options.json is not None:
        options.json.write_text(json.dumps({"columns": _COLUMNS, "rows": rows}, indent=1), encoding="utf-8")
    return 0


def _batches(options: argparse.Namespace) -> Iterator[tuple[str, PackedBatch, tuple[int, int, int]]]:
    """The first, the middle and the last micro-batch of an update, and the heads."""
    work = SMOKE if options.smoke else Work()
    for parts in options.micro_batches:
        config = Case("train", options.model, "bf16", "padded", micro_batches=parts, work=work).load_config()
        update, *_ = build_updates(build_budget(config.batch), 1, work.vocabulary)
        batches = list(update.batches)
        for place in sorted({0, parts // 2, parts - 1}):
            batch = batches[place]
            sentences = batch.tgt_packing
            name = f"{sentences.tokens} tokens, {sentences.sentences} sentences to {sentences.max_len}"
            yield name, batch, (config.model.num_heads, config.model.d_k, config.model.d_v)


def _compare(
    over_memory: bool, packing: Packing, keys: Packing, shape: ops.HeadShape, device: torch.device
) -> Iterator[list[str]]:
    """A row for each implementation: its name, its error and its times."""
    generator = torch.Generator().manual_seed(1)

    def draw(rows: int, width: int) -> Tensor:
        return torch.randn(rows, shape.heads * width, generator=generator).bfloat16().to(device)

    widths = [shape.d_k, shape.d_k + shape.d_v] if over_memory else [2 * shape.d_k + shape.d_v]
    given = [draw(one.rows, width).requires_grad_() for one, width in zip((packing, keys), widths, strict=False)]
    grad = draw(packing.rows, shape.d_v)

    def compute(attend: Attention, inputs: list[Tensor]) -> Tensor:
        return attend(inputs[0], inputs[1] if over_memory else None, packing, keys, shape)

    def differentiate(attend: Attention, inputs: list[Tensor]) -> list[Tensor]:
        out = compute(attend, inputs)
        return [out.detach(), *torch.autograd.grad(out, inputs, grad.to(out.dtype))]

    exact = differentiate(_padded, [one.detach().float().requires_grad_() for one in given])
    for name, attend in ATTENTIONS.items():
        try:
            found = differentiate(attend, given)
            error = max(float((a.float() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))
            with torch.no_grad():
                forward = _milliseconds(partial(compute, attend, given), device)
            both = _milliseconds(partial(differentiate, attend, given), device)
            yield [name, f"{error:.1e}", f"{forward:.3f}", f"{both:.3f}"]
        except Exception as failure:
            said = str(failure).partition("\n")[0].replace("|", "/")
            yield [name, f"{type(failure).__name__}: {said[:80]}", "", ""]


def _efficient(
    queries: Tensor, keys_values: Tensor | None, packing: Packing, keys: Packing, shape: ops.HeadShape
) -> Tensor:
    """PyTorch's memory-efficient attention, whose blocks are 64 x 64, for packed sentences."""
    q, k, v = (part[None] for part in reference.split_projections(queries, keys_values, shape))
    out: Tensor = torch.ops.aten._efficient_attention_forward(
        q, k, v, None, packing.cu, keys.cu, packing.max_len, keys.max_len, 0.0, int(shape.causal), True,
        scale=shape.d_k**-0.5,
    )[0]  # fmt: skip
    return out[0].flatten(1)


def _padded(
    queries: Tensor, keys_values: Tensor | None, packing: Packing, keys: Packing, shape: ops.HeadShape
) -> Tensor:
    return reference.attention(queries, keys_values, packing, keys, shape, 0.0)


ATTENTIONS: dict[str, Attention] = {
    "flash": varlen.attention,
    "efficient": _efficient,
    "padded": _padded,
}


def _milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """The time that the device takes; it waits until the host has queued the work."""
    if device.type != "cuda":
        return 1000 * best_seconds(work, device)
    found: list[float] = []
    for number in range(_WARM_UP + _ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_HEAD_START)  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        if number >= _WARM_UP:
            found.append(begin.elapsed_time(end))
    return statistics.median(found)
