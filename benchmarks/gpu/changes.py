"""Changes that would make training faster, as what they do to the counted operators of an update.

A change that the program has already finds nothing to replace, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.gpu.roofline import CUSTOM, Operator, Work
from dstransformer.config import Config

#: Bytes per logit: of the log-softmax in fp32 that is counted, and of a kernel that reads twice and writes in place.
_SOFTMAX_BYTES, _FUSED_BYTES = 8, 6

#: Bytes per element of a residual sum with dropout and norm in one kernel: two inputs, the sum, the result, the mask.
_RESIDUAL_BYTES = 9

#: Bytes per element of a dropout: half precision in and out, and the mask.
_DROPOUT_BYTES = 5

#: Bytes per element of a gradient masked with booleans, and of a kernel that reads the gradient and the result of ReLU.
_MASKED_BYTES, _RELU_BYTES = 5, 6

#: Operators that work on logits and nothing else; ``_to_copy`` works on them too.
_ON_LOGITS = ("_log_softmax", "exp_", "sub_", "mul_", "mean", "gather", "scatter_add_", "neg", "full_like")

#: Launches of an update whose micro-batch is one replayed graph: the graph, the reduction of gradients, Adam, copies.
_GRAPH_LAUNCHES = 40

Change = Callable[[Work, Config, int], Work]


def fuse_cross_entropy(work: Work, config: Config, vocabulary: int) -> Work:
    """The loss and its gradient in one kernel."""
    softmax = _named(work.operators, "_log_softmax")
    if not softmax:
        return work
    matrix = config.model.embedding_rows(vocabulary) * config.model.d_model

    def is_conversion(operator: Operator) -> bool:
        return operator.name == "_to_copy" and operator.moved > 1.1 * 12 * matrix

    kept = [o for o in work.operators if o.name not in _ON_LOGITS and not is_conversion(o)]
    fused = [o._replace(name="cross_entropy", moved=o.moved * _FUSED_BYTES // _SOFTMAX_BYTES) for o in softmax]
    return replace(work, operators=kept + fused)


def fuse_residuals(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """Dropout, sum and norm in one kernel forward, and in one backward."""
    norms, dropouts = (_named(work.operators, name) for name in ("native_layer_norm", "native_dropout"))
    calls = sum(norm.calls for norm in norms)
    if not norms or not dropouts:
        return work
    elements = sum(o.calls * o.moved for o in dropouts) // sum(o.calls for o in dropouts) // _DROPOUT_BYTES
    rest = list(work.operators)
    for name in ("native_layer_norm", "native_layer_norm_backward", "native_dropout", "native_dropout_backward", "add"):
        rest = _less(rest, name, calls)
    kernels = (Operator(f"residual_{way}", "bfloat16", calls, _RESIDUAL_BYTES * elements, 0) for way in ("in", "out"))
    return replace(work, operators=[*rest, *kernels])


def fuse_relu(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """ReLU in the kernel of the product before it, and its gradient in one kernel."""
    kept = [operator for operator in work.operators if operator.name not in ("relu", "le", "masked_fill")]
    masked = (operator for operator in work.operators if operator.name == "masked_fill")
    fused = [o._replace(name="relu_backward", moved=o.moved * _RELU_BYTES // _MASKED_BYTES) for o in masked]
    return replace(work, operators=kept + fused)


def call_flash_directly(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """The operator under PyTorch's ``varlen_attn``, which is written in Python."""
    return replace(
        work, operators=[o._replace(name=o.name.removeprefix("_")) if o.name in CUSTOM else o for o in work.operators]
    )


def wait_once(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """Everything that the host reads comes one update late, from pinned memory: one event to wait for, long over."""
    return replace(work, waits=min(work.waits, 1))


def replay_graphs(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """CUDA graphs: one launch for a micro-batch."""
    return replace(work, launches=_GRAPH_LAUNCHES)


#: In the order in which they are added, each on top of those before.
CHANGES: Sequence[tuple[str, Change]] = (
    ("cross-entropy in one kernel", fuse_cross_entropy),
    ("dropout, sum and norm in one kernel", fuse_residuals),
    ("ReLU within kernels", fuse_relu),
    ("flash attention called directly", call_flash_directly),
    ("one wait an update", wait_once),
    ("CUDA graphs", replay_graphs),
)


def _named(operators: Sequence[Operator], name: str) -> list[Operator]:
    return [operator for operator in operators if operator.name == name]


def _less(operators: Sequence[Operator], name: str, calls: int) -> list[Operator]:
    """The operators without so many calls of one of them, those that move the most bytes."""
    left = []
    for operator in sorted(operators, key=lambda o: -o.moved):
        taken = min(calls, operator.calls) if operator.name == name and operator.dtype == "bfloat16" else 0
        calls -= taken
        if operator.calls > taken:
            left.append(operator._replace(calls=operator.calls - taken))
    return left
