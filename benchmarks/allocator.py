"""What launch/env.sh gives on a CPU: the same training step with its variables and without, in alternation."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from benchmarks.bars import of_limit
from benchmarks.limits import cpu_flops
from benchmarks.processes import settings

ROUNDS = 5
STEPS = 6

STEP = """
import sys, time
import torch
from benchmarks.limits import flops_per_token, sizes_of
from dstransformer.config import load_config
from dstransformer.model import Transformer

steps = int(sys.argv[1])
config = load_config("base", ["model.num_layers=3", "model.d_model=256", "model.d_ff=1024", "model.num_heads=4"])
model = Transformer(config.model, 8000, 0.1).to(torch.bfloat16)
generator = torch.Generator().manual_seed(1)

def run():
    lengths = torch.randint(8, 24, (256,), generator=generator).sort().values
    cu = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0))).int()
    ids = torch.randint(4, 8000, (int(cu[-1]),), generator=generator)
    model(ids, cu, int(lengths.max()), ids, ids, cu, int(lengths.max())).loss.backward()
    model.zero_grad()
    return lengths

run()
began = time.perf_counter()
lengths = torch.cat([run() for _ in range(steps)]).numpy()
seconds = time.perf_counter() - began
print(2 * lengths.sum() / seconds, flops_per_token(sizes_of(config.model), 8000, lengths, lengths))
"""


def main() -> None:
    with_settings = settings()
    plain = {name: value for name, value in os.environ.items() if name not in with_settings}
    rates: dict[str, list[float]] = {"without": [], "with": []}
    peaks = []
    for _ in range(ROUNDS):
        peaks.append(cpu_flops("bf16"))
        for name, environment in (("without", plain), ("with", plain | with_settings)):
            rate, flops = _measure(environment)
            rates[name].append(rate)
    peak = statistics.median(peaks) / 1e9
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name:>8} launch/env.sh: {rate:8,.0f} tokens/s (median of {ROUNDS})")
        of_limit("    its products", rate * flops / 1e9, peak, "a matrix product of 2048", " GFLOP/s")
    ratios = [b / a for a, b in zip(rates["without"], rates["with"], strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


def _measure(environment: dict[str, str]) -> tuple[float, float]:
    """Tokens a second, and operations a token."""
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(STEPS)], env=environment, capture_output=True, text=True, check=True
    )
    rate, flops = done.stdout.split()
    return float(rate), float(flops)
