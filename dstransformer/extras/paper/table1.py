"""The paper's Table 1 (section 4): its formulas at a length and a width, and the time of one layer of each type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.benchmark import Timer

from dstransformer.decoding.devices import free_memory, is_memory_error
from dstransformer.errors import UserError
from dstransformer.io.progress import Advance
from dstransformer.model.ops import processor_name

#: Each layer is measured for about this many seconds.
MEASURED_SECONDS = 1.0

Layer = Callable[[Tensor], Tensor]


class Size(NamedTuple):
    """The size of a layer, in the paper's letters.

    Attributes:
        n: Length of the sequence.
        d: Width of the representation of a position.
        k: Width of the convolution's kernel.
        r: Size of the neighbourhood of restricted self-attention.
    """

    n: int
    d: int
    k: int
    r: int


@dataclass(frozen=True, kw_only=True)
class LayerType:
    """A row of the table.

    Attributes:
        name: As in the paper.
        complexity: The paper's complexity per layer.
        multiply_adds: Multiply-adds of the forward pass, without those of softmax and tanh.
        sequential: The paper's sequential operations.
        sequential_operations: Positions that have to be computed one after the other.
        path: The paper's maximum path length.
        path_length: Layers, or steps in time, that a signal crosses between the input and the output positions that are
            farthest apart.
        build: Builds a layer of this type, ``(1, n, d)`` to ``(1, n, d)``, without biases.
    """

    name: str
    complexity: str
    multiply_adds: Callable[[Size], int]
    sequential: str = "O(1)"
    sequential_operations: Callable[[Size], int] = lambda _: 1
    path: str = "O(1)"
    path_length: Callable[[Size], int] = lambda _: 1
    build: Callable[[Size], Layer]


def attention(x: Tensor) -> Tensor:
    """``softmax(x x^T / sqrt(d)) x`` (equation 1), with one head and without projections, as the table counts it."""
    scores = x @ x.transpose(-2, -1) * x.shape[-1] ** -0.5
    attended: Tensor = scores.softmax(dim=-1) @ x
    return attended


def restricted_attention(x: Tensor, r: int) -> Tensor:
    """:func:`attention` of each position to the ``r`` positions around it, in O(r·n·d).

    Queries are cut into blocks of ``r``, whose windows lie within ``2 r - 1`` keys: a view of the padded keys. About
    half of the scores are outside of a window, and masked.
    """
    batch, n, d = x.shape
    before, after = window(r)
    blocks = -(-n // r)
    padding = blocks * r - n
    queries = F.pad(x, (0, 0, 0, padding)).view(batch, blocks, r, d)
    keys = F.pad(x, (0, 0, before, padding + after)).unfold(1, 2 * r - 1, r)  # (batch, blocks, d, 2 r - 1)
    query, key = torch.arange(r, device=x.device)[:, None], torch.arange(2 * r - 1, device=x.device)
    start = torch.arange(blocks, device=x.device)[:, None, None] * r
    position = start + key - before
    is_padding = ((position < 0) | (position >= n)) & (start + query < n)  # queries that are padding see padding
    outside = (key < query) | (key >= query + r) | is_padding
    scores = (queries @ keys * d**-0.5).masked_fill(outside, float("-inf"))
    attended: Tensor = scores.softmax(dim=-1) @ keys.transpose(-2, -1)
    return attended.view(batch, blocks * r, d)[:, :n]


class Recurrent(nn.RNN):
    """``nn.RNN`` with tanh."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """``(1, n, d)`` to ``(1, n, d)``."""
        states: Tensor = super().forward(x)[0]
        return states


class Convolutional(nn.Conv1d):
    """A causal ``nn.Conv1d``: a position reads itself and the ``k - 1`` before it."""

    def forward(self, x: Tensor) -> Tensor:
        """``(1, n, d)`` to ``(1, n, d)``."""
        return super().forward(F.pad(x.transpose(1, 2), (self.kernel_size[0] - 1, 0))).transpose(1, 2)


def window(r: int) -> tuple[int, int]:
    """The positions before and after its own that a position attends to, with itself ``r`` in all."""
    return r // 2, (r - 1) // 2


def restricted_path_length(n: int, r: int) -> int:
    """Layers of restricted self-attention between any two positions: the narrower side of the window per layer."""
    return max(1, -(-(n - 1) // min(window(r))))


def dilated_path_length(n: int, k: int) -> int:
    """Layers of causal convolutions with dilations 1, k, k², … until the last position depends on the first.

    That is ``log_k(n)``, rounded up. With whole numbers, because the logarithm in floating point is off by one at
    some powers.
    """
    layers, reached = 1, k
    while reached < n:
        layers, reached = layers + 1, reached * k
    return layers


#: The rows of the table, in the paper's order.
LAYER_TYPES = (
    LayerType(
        name="self-attention",
        complexity="O(n²·d)",
        multiply_adds=lambda size: 2 * size.n**2 * size.d,
        build=lambda _: attention,
    ),
    LayerType(
        name="recurrent",
        complexity="O(n·d²)",
        multiply_adds=lambda size: 2 * size.n * size.d**2,
        sequential="O(n)",
        sequential_operations=lambda size: size.n,
        path="O(n)",
        path_length=lambda size: size.n,
        build=lambda size: Recurrent(size.d, size.d, bias=False, batch_first=True),
    ),
    LayerType(
        name="convolutional",
        complexity="O(k·n·d²)",
        multiply_adds=lambda size: size.k * size.n * size.d**2,
        path="O(log_k(n))",
        path_length=lambda size: dilated_path_length(size.n, size.k),
        build=lambda size: Convolutional(size.d, size.d, size.k, bias=False),
    ),
    LayerType(
        name="self-attention (restricted)",
        complexity="O(r·n·d)",
        multiply_adds=lambda size: 2 * size.r * size.n * size.d,
        path="O(n/r)",
        path_length=lambda size: restricted_path_length(size.n, size.r),
        build=lambda size: lambda x: restricted_attention(x, size.r),
    ),
)


def check_size(size: Size, device: torch.device) -> None:
    """Check the size that a user gives.

    Raises:
        UserError: A number is too small, the neighbourhood or the kernel is larger than the length, or a layer would
            not fit into memory.
    """
    for option, value, least in (
        ("--length", size.n, 2), ("--width", size.d, 1), ("--neighbourhood", size.r, 3), ("--kernel", size.k, 2),
    ):  # fmt: skip
        if value < least:
            raise UserError(f"{option} {value}: give a number from {least}")
    for option, value in (("--neighbourhood", size.r), ("--kernel", size.k)):
        if value > size.n:
            raise UserError(
                f"{option} {value} is larger than --length {size.n}: give a smaller one, or a longer length"
            )
    # Scores and their gradients, neighbours and activations, weights and their gradients; fp32.
    numbers = 4 * size.n**2 + (8 + 4 * size.r) * size.n * size.d + 2 * size.k * size.d**2
    if (needed := 4 * numbers) > (free := free_memory(device)):
        raise UserError(
            f"--length {size.n:,} with --width {size.d:,} needs about {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB "
            "are free: give a shorter length or a smaller width"
        )


def measure_seconds(kind: LayerType, size: Size, device: torch.device) -> float:
    """The median seconds of a forward and a backward pass of one layer over one sequence, in fp32.

    Raises:
        UserError: The layer does not fit into memory.
    """
    torch.manual_seed(1)
    try:
        layer = kind.build(size)
        weights = list(layer.to(device).parameters()) if isinstance(layer, nn.Module) else []
        x = torch.randn(1, size.n, size.d, device=device, requires_grad=True)
        gradient = torch.ones_like(x)

        def run() -> None:
            torch.autograd.grad(layer(x), [x, *weights], gradient)

        timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
        return float(timer.blocked_autorange(min_run_time=MEASURED_SECONDS).median)
    except (RuntimeError, MemoryError) as error:
        if not is_memory_error(error):
            raise
        raise UserError(
            f"there is not enough memory for {kind.name} at --length {size.n:,} and --width {size.d:,}: give smaller "
            "ones"
        ) from None


def build_table1(size: Size, device: torch.device, progress: Advance) -> str:
    """Measure a layer of each type, of a size that :func:`check_size` allows, and write the table as Markdown.

    Raises:
        UserError: A layer does not fit into memory.
    """
    torch.backends.cudnn.allow_tf32 = False  # as matrix products: all layers in full fp32
    rows = [
        ["layer type", "complexity per layer", "multiply-adds", "sequential operations", "maximum path length", "time"],
        ["---"] * 6,
    ]
    for kind in LAYER_TYPES:
        rows.append([
            kind.name,
            kind.complexity,
            f"{kind.multiply_adds(size):,}",
            f"{kind.sequential}: {kind.sequential_operations(size):,}",
            f"{kind.path}: {kind.path_length(size):,}",
            f"{1e3 * measure_seconds(kind, size, device):,.2f} ms",
        ])  # fmt: skip
        progress(1)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    threads = f"{processor_name()}, {torch.get_num_threads()} threads"
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else threads
    return (
        f"{table}\n\nn = {size.n:,}, d = {size.d:,}, k = {size.k}, r = {size.r}. Multiply-adds are those of a forward "
        "pass, the time is the median of forward and backward passes, in fp32 over one sequence; "
        f"{machine}, torch {torch.__version__}.\n"
    )
