"""dstransformer: the Transformer of "Attention Is All You Need" (Vaswani et al., 2017), trained with DeepSpeed."""

import os
import sys

__version__ = "0.1.0"

# A GNU OpenMP thread that waits for work first spins 300,000 times, which steals time from other work on the same core
# (`python -m benchmarks spinning`). OpenMP reads this variable when PyTorch loads it.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
