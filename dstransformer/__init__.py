"""dstransformer: the Transformer of "Attention Is All You Need" (Vaswani et al., 2017), trained with DeepSpeed."""

import os
import sys

__version__ = "0.1.0"

# A thread of GNU OpenMP that waits for work spins 300,000 times first, and on a core that it shares with other work it
# takes that long from it (`python -m benchmarks spinning`). OpenMP reads this when PyTorch loads it.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
