"""Forward and backward of a micro-batch: launched one operator at a time, and replayed as one CUDA graph."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu.cases import SMOKE, AttentionBackend, Case, Work
from benchmarks.gpu.device import describe
from benchmarks.gpu.text import build_updates
from benchmarks.lib.limits import synchronize
from dstransformer.data.plan import build_budget
from dstransformer.model import DTYPES, Transformer
from dstransformer.model.ops import RoundedWeights

_WARM_UP, _ROUNDS = 3, 20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="base", help="the preset; default: base")
    parser.add_argument("--micro-batches", type=int, default=8, help="parts of an update; default: 8")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; on a CPU, without the graph")
    parser.add_argument("--json", type=Path, help="file for the figures")


def main(options: argparse.Namespace) -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work = SMOKE if options.smoke else Work()
    backend: AttentionBackend = "varlen" if device.type == "cuda" else "padded"
    case = Case("train", options.model, "bf16", backend, micro_batches=options.micro_batches, work=work)
    config = case.load_config()
    update, *_ = build_updates(build_budget(config.batch), 1, work.vocabulary)
    batch = next(iter(update.batches)).to(device)
    torch.manual_seed(1)
    model = Transformer(config.model, work.vocabulary, config.loss.label_smoothing, backend, dtype=DTYPES["bf16"])
    model = model.to(device)
    weights = RoundedWeights(model.parameters(), DTYPES["bf16"])

    def compute() -> None:
        for weight in model.parameters():
            weight.grad = None
        with weights.in_use():
            model(*batch).loss.backward()

    figures = {"eager, ms": _milliseconds(compute, device)}
    if device.type == "cuda":
        figures["graph, ms"] = _milliseconds(_capture(compute), device)
    print(describe(device))
    for name, figure in figures.items():
        print(f"{case.name}, a micro-batch, {name}: {figure:.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0


def _capture(compute: Callable[[], None]) -> Callable[[], None]:
    """Record the work once, after a warm-up on another stream, as PyTorch asks for."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()
    return graph.replay


def _milliseconds(work: Callable[[], None], device: torch.device) -> float:
    for _ in range(_WARM_UP):
        work()
    seconds = []
    for _ in range(_ROUNDS):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)
