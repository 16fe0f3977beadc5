"""What launch/env.sh gives on a CPU: the same training step with its variables and without, in alternation."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from benchmarks.processes import settings

ROUNDS = 5
STEPS = 6

STEP = """
import sys, time
import torch
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
    return 2 * ids.numel()

run()
began = time.perf_counter()
tokens = sum(run() for _ in range(steps))
print(tokens / (time.perf_counter() - began))
"""


def main() -> None:
    with_settings = settings()
    plain = {name: value for name, value in os.environ.items() if name not in with_settings}
    rates: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(ROUNDS):
        rates["without"].append(_rate(plain))
        rates["with"].append(_rate(plain | with_settings))
    for name, values in rates.items():
        print(f"{name:>8} launch/env.sh: {statistics.median(values):8,.0f} tokens/s (median of {ROUNDS})")
    ratios = [b / a for a, b in zip(rates["without"], rates["with"], strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


def _rate(environment: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(STEPS)], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)
