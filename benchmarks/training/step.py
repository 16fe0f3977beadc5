"""Tokens per second and operations per token of training steps.

A bare loop in a process of its own, for benchmarks of what the environment changes. SIZE is ``tiny`` or ``base``.
"""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.lib.limits import flops_per_token, sizes_of
from dstransformer.config import load_config
from dstransformer.model import DTYPES, Packing, Transformer

TINY = ("model.num_layers=3", "model.d_model=256", "model.d_ff=1024", "model.num_heads=4")
PIECES = 8000


def main() -> None:
    size, precision, steps = sys.argv[1:]
    config = load_config("base", TINY if size == "tiny" else ())
    model = Transformer(config.model, PIECES, 0.1).to(DTYPES[precision])
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
    lengths = torch.cat([step() for _ in range(int(steps))]).numpy()
    seconds = time.perf_counter() - began
    print(2 * lengths.sum() / seconds, flops_per_token(sizes_of(config.model), PIECES, lengths, lengths))


if __name__ == "__main__":
    main()
