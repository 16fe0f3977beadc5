"""Changes that would make training faster, as what they do to the counted operators of an update.

A change that the program has already finds nothing to replace, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.gpu.roofline import Operator, Work
from dstransformer.config import Config
from dstransformer.model import parameter_count

#: Launches of an update whose micro-batch is one replayed graph: the graph, the reduction of gradients, Adam, copies.
_GRAPH_LAUNCHES = 40

Change = Callable[[Work, Config, int], Work]


def fuse_relu(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """ReLU in the kernel of the product before it."""
    return replace(work, operators=[operator for operator in work.operators if operator.name != "relu"])


def cast_once(work: Work, config: Config, vocabulary: int) -> Work:
    """One copy of all weights in half precision per update, in place of a cast at every use."""
    sizes = _weight_sizes(config, vocabulary)

    def is_cast(operator: Operator) -> bool:
        alike = any(abs(operator.moved - 6 * size) < 0.02 * 6 * size for size in sizes)
        return operator.name == "_to_copy" and operator.dtype == "bfloat16" and alike

    if not any(map(is_cast, work.operators)):
        return work
    copy = Operator("cast_weights", "bfloat16", 1, 6 * parameter_count(config.model, vocabulary), 0)
    return replace(work, operators=[*(o for o in work.operators if not is_cast(o)), copy])


def replay_graphs(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """CUDA graphs: one launch for a micro-batch."""
    return replace(work, launches=_GRAPH_LAUNCHES)


#: In the order in which they are added, each on top of those before.
CHANGES: Sequence[tuple[str, Change]] = (
    ("ReLU within products", fuse_relu),
    ("weights cast once an update", cast_once),
    ("CUDA graphs", replay_graphs),
)


def _weight_sizes(config: Config, vocabulary: int) -> set[int]:
    """The sizes of the weights that the model casts: matrices, and vectors of each width."""
    model = config.model
    width, inner, keys, values = (
        model.d_model, model.d_ff, model.num_heads * model.d_k, model.num_heads * model.d_v
    )  # fmt: skip
    projections = (2 * keys + values, keys, keys + values, values)
    return {width, inner, width * inner, model.embedding_rows(vocabulary) * width} | {width * p for p in projections}
