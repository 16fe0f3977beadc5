"""Measures the layer types of the paper's Table 1 and fits how time and memory grow (section 4)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

import numpy as np
import psutil
import torch

from dstransformer.decoding.devices import is_memory_error
from dstransformer.errors import UserError
from dstransformer.extras.paper.table1_layers import LAYER_TYPES, Layer, LayerType, Size
from dstransformer.io.progress import Advance

#: A quick pass is repeated for this many seconds, at most :data:`MAX_REPETITIONS` times.
MIN_SECONDS = 0.1
MAX_REPETITIONS = 50


@dataclass(frozen=True)
class LayerCost:
    """The cost of a layer: median seconds, and bytes allocated at the peak beyond inputs and weights."""

    forward_seconds: float
    backward_seconds: float
    peak_bytes: int

    @property
    def seconds(self) -> float:
        """Forward and backward pass."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True)
class PowerLaw:
    """``factor · n^n_exponent · d^d_exponent``.

    Attributes:
        factor: In seconds, bytes or multiply-adds.
        n_exponent: The exponent of the length.
        d_exponent: The exponent of the width.
        residual: Root mean square of the relative deviations of the values from the law; 0.05 is 5%.
    """

    factor: float
    n_exponent: float
    d_exponent: float
    residual: float

    def value(self, n: int, d: int) -> float:
        """The law at a length and a width."""
        return float(self.factor * n**self.n_exponent * d**self.d_exponent)


def fit_power_law(sizes: Sequence[tuple[int, int]], values: Sequence[float]) -> PowerLaw:
    """Fit a power law by least squares on logarithms.

    Args:
        sizes: Length and width of each value; at least two lengths and two widths in all combinations.
        values: Positive numbers.
    """
    terms = np.array([[1.0, np.log(n), np.log(d)] for n, d in sizes])
    logarithms = np.log(np.array(values, dtype=float))
    solution, *_ = np.linalg.lstsq(terms, logarithms, rcond=None)
    deviations = np.expm1(logarithms - terms @ solution)
    return PowerLaw(
        float(np.exp(solution[0])),
        float(solution[1]),
        float(solution[2]),
        float(np.sqrt(np.mean(deviations**2))),
    )


def measure(layer: Layer, repetitions: int, device: torch.device) -> LayerCost:
    """Run forward and backward pass once to warm up, then measure time, and memory in a separate run.

    Args:
        layer: The layer.
        repetitions: Passes whose median counts; quick ones are repeated more often.
        device: Where the layer is.

    Raises:
        RuntimeError: The layer does not fit into memory.
    """
    torch.backends.cudnn.allow_tf32 = False  # as matrix products: all layers in full fp32
    gradient = torch.ones_like(layer.forward())
    _run(layer, gradient, device)
    times: list[tuple[float, float]] = []
    while len(times) < repetitions or (sum(map(sum, times)) < MIN_SECONDS and len(times) < MAX_REPETITIONS):
        times.append(_run(layer, gradient, device))
    forward, backward = zip(*times, strict=True)
    return LayerCost(median(forward), median(backward), _peak_bytes(layer, gradient, device))


def _run(layer: Layer, gradient: torch.Tensor, device: torch.device) -> tuple[float, float]:
    """Seconds of one forward and one backward pass. Gradients are allocated again, as after ``zero_grad``."""
    _clear_gradients(layer)
    _synchronize(device)
    began = time.perf_counter()
    out = layer.forward()
    _synchronize(device)
    between = time.perf_counter()
    torch.autograd.backward(out, gradient)
    _synchronize(device)
    return between - began, time.perf_counter() - between


def _peak_bytes(layer: Layer, gradient: torch.Tensor, device: torch.device) -> int:
    """Bytes of tensors at the peak of both passes, beyond what was allocated before.

    On CUDA that is ``torch.cuda.max_memory_allocated``. On a CPU PyTorch's profiler records the allocations of
    tensors. Memory that libraries such as oneDNN allocate themselves is not counted.
    """
    _clear_gradients(layer)
    if device.type == "cuda":
        _synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        torch.autograd.backward(layer.forward(), gradient)
        _synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler prints two lines each time
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        torch.autograd.backward(layer.forward(), gradient)
    assert profile.kineto_results is not None
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return int(np.cumsum(changes).max())


def _clear_gradients(layer: Layer) -> None:
    for leaf in layer.leaves:
        leaf.grad = None


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


BYTES_PER_NUMBER = 4  # fp32


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        lengths: The lengths ``n``, in increasing order.
        widths: The widths ``d``, in increasing order.
        neighbourhood: ``r`` of restricted self-attention.
        kernel: ``k`` of the convolution.
        batch: Number of sequences.
        repetitions: Passes whose median counts.
        device: Where to compute.
    """

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    neighbourhood: int
    kernel: int
    batch: int
    repetitions: int
    device: torch.device

    def size(self, n: int, d: int) -> Size:
        """The size of a layer at a length and a width."""
        return Size(n, d, self.kernel, self.neighbourhood)

    @property
    def largest(self) -> Size:
        """The size at the largest length and width."""
        return self.size(self.lengths[-1], self.widths[-1])

    @property
    def fitted(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Lengths and widths of the fits."""
        return larger_half(self.lengths), larger_half(self.widths)


@dataclass(frozen=True)
class Row:
    """The measurements of a layer type.

    Attributes:
        kind: The layer type.
        costs: By length and width.
        time: The fit of the seconds of both passes.
        memory: The fit of the peak bytes.
        count: The fit of the exact multiply-adds. The time would follow it if each multiply-add took equally long.
    """

    kind: LayerType
    costs: dict[tuple[int, int], LayerCost]
    time: PowerLaw
    memory: PowerLaw
    count: PowerLaw


@dataclass(frozen=True)
class Table1:
    """The result: one row for each layer type."""

    settings: Settings
    rows: tuple[Row, ...]


def larger_half(values: Sequence[int]) -> tuple[int, ...]:
    """The larger half of increasing values, rounded up, at least two. There the order outweighs the overhead."""
    return tuple(values[-max(2, -(-len(values) // 2)) :])


def check_settings(settings: Settings) -> None:
    """Check the settings of the user.

    Raises:
        UserError: A number is too small or named twice, there are fewer than two lengths or widths, the neighbourhood
            or the kernel is larger than every length, the device is neither a CPU nor a CUDA device, or the largest
            layer would not fit into memory.
    """
    if settings.device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {settings.device}: memory is measured on a CPU or with CUDA only")
    for option, values in (("--lengths", settings.lengths), ("--widths", settings.widths)):
        if values[0] < 1:
            raise UserError(f"{option} {values[0]}: give numbers from 1")
        if len(set(values)) < len(values):
            raise UserError(f"{option} names a number twice: {' '.join(map(str, values))}")
        if len(values) < 2:
            raise UserError(f"{option} {values[0]}: give at least two, as an exponent is fitted")
    minimums = {"--neighbourhood": (settings.neighbourhood, 3), "--kernel": (settings.kernel, 2),
                "--batch": (settings.batch, 1)}  # fmt: skip
    for option, (value, minimum) in minimums.items():
        if value < minimum:
            raise UserError(f"{option} {value}: give a number from {minimum}")
    longest = settings.lengths[-1]
    for option, value in (("--neighbourhood", settings.neighbourhood), ("--kernel", settings.kernel)):
        if value > longest:
            raise UserError(
                f"{option} {value} is larger than every length (the longest is {longest}): give a smaller one, or "
                "longer --lengths"
            )
    needed, free = BYTES_PER_NUMBER * _numbers_at_peak(settings), _free_memory(settings.device)
    if needed > free:
        raise UserError(
            f"length {longest:,} with width {settings.widths[-1]:,} needs about {needed / 1e9:,.1f} GB, and "
            f"{free / 1e9:,.1f} GB are free: give shorter --lengths or smaller --widths"
        )


def _numbers_at_peak(settings: Settings) -> int:
    """About how many numbers the largest layer holds: attention's weights, activations, and weights with gradients."""
    size = settings.largest
    return settings.batch * (4 * size.n**2 + 8 * size.n * size.d) + 2 * max(4, size.k) * size.d**2


def measure_table1(settings: Settings, progress: Advance) -> Table1:
    """Measure every layer type at every length and width.

    Args:
        settings: Checked with :func:`check_settings`.
        progress: Called after each measurement.

    Raises:
        UserError: A layer does not fit into memory.
    """
    return Table1(settings, tuple(_measure_row(kind, settings, progress) for kind in LAYER_TYPES))


def _measure_row(kind: LayerType, settings: Settings, progress: Advance) -> Row:
    costs = {}
    for n, d in product(settings.lengths, settings.widths):
        torch.manual_seed(1)
        try:
            layer = kind.build(settings.size(n, d), settings.batch, settings.device)
            costs[n, d] = measure(layer, settings.repetitions, settings.device)
        except (RuntimeError, MemoryError) as error:
            if not is_memory_error(error):
                raise
            raise UserError(
                f"there is not enough memory for {kind.name} at length {n:,} and width {d:,}: give shorter --lengths "
                "or smaller --widths"
            ) from None
        progress(1)
    sizes = list(product(*settings.fitted))
    return Row(
        kind,
        costs,
        time=fit_power_law(sizes, [costs[size].seconds for size in sizes]),
        memory=fit_power_law(sizes, [costs[size].peak_bytes for size in sizes]),
        count=fit_power_law(sizes, [kind.multiply_adds(settings.size(*size)) for size in sizes]),
    )


def _free_memory(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available)
