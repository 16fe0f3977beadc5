"""Changes that would make training faster, as what they do to the counted operators of an update.

A change that the program has already finds nothing to replace, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.gpu.roofline import Work
from dstransformer.config import Config

#: Launches of an update whose micro-batch is one replayed graph: the graph, the reduction of gradients, Adam, copies.
_GRAPH_LAUNCHES = 40

Change = Callable[[Work, Config, int], Work]


def fuse_relu(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """ReLU in the kernel of the product before it."""
    return replace(work, operators=[operator for operator in work.operators if operator.name != "relu"])


def replay_graphs(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """CUDA graphs: one launch for a micro-batch."""
    return replace(work, launches=_GRAPH_LAUNCHES)


#: In the order in which they are added, each on top of those before.
CHANGES: Sequence[tuple[str, Change]] = (
    ("ReLU within products", fuse_relu),
    ("CUDA graphs", replay_graphs),
)
