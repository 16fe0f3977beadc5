"""Tokens per second, and operations per token, of training steps in a bare loop."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

import torch

from benchmarks.lib.limits import flops_per_token
from benchmarks.lib.processes import run_command
from benchmarks.lib.workload import PIECES, SIZES, load_sized
from dstransformer.data.packing import Packing
from dstransformer.model import DTYPES, Transformer


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--steps", type=int, default=6, help="steps that are timed, after one that is not")


def main(options: argparse.Namespace) -> None:
    rate, flops = measure(options.size, options.precision, options.steps)
    print(f"{rate:,.0f} tokens/s, {flops / 1e6:.1f} MFLOP per token")


def measure(size: str, precision: str, steps: int) -> tuple[float, float]:
    """Tokens per second, and operations per token."""
    model_config = load_sized(size, precision).model
    model = Transformer(model_config, PIECES, 0.1).to(DTYPES[precision])
    generator = torch.Generator().manual_seed(1)

    def step() -> torch.Tensor:
        lengths = torch.randint(8, 24, (256,), generator=generator).sort().values
        packing = Packing.from_lengths(lengths.tolist())
        ids = torch.randint(4, PIECES, (packing.tokens,), generator=generator)
        model(ids, packing, ids, ids, packing).loss.backward()
        model.zero_grad()
        return lengths

    step()
    began = time.perf_counter()
    lengths = torch.cat([step() for _ in range(steps)]).numpy()
    seconds = time.perf_counter() - began
    return 2 * float(lengths.sum()) / seconds, flops_per_token(model_config, PIECES, lengths, lengths)


def measure_apart(size: str, precision: str, steps: int, env: Mapping[str, str]) -> tuple[float, float]:
    """As :func:`measure`, in a new process with these environment variables."""
    rate, flops = run_command([sys.executable, "-m", __name__, size, precision, str(steps)], env).stdout.split()
    return float(rate), float(flops)


if __name__ == "__main__":
    print(*measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))
