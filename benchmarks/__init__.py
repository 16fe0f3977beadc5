"""Benchmarks. Each alternates between both sides within one run and prints their ratio. ``python -m benchmarks``."""

import dstransformer  # noqa: F401  # sets how OpenMP's threads wait, before PyTorch loads it
