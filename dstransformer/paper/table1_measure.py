"""Time and peak memory of a layer's forward and backward pass, and the power law that they follow."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from dstransformer.paper.table1_layers import Layer

#: A quick pass is repeated until this many seconds have passed, at most :data:`MAX_REPETITIONS` times.
ENOUGH_SECONDS = 0.1
MAX_REPETITIONS = 50


@dataclass(frozen=True)
class Cost:
    """What a layer costs: medians of the seconds, and the bytes allocated at the peak beyond inputs and weights."""

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


def measure(layer: Layer, repetitions: int, device: torch.device) -> Cost:
    """Run forward and backward pass once to warm up, then measure time, and memory in a run of its own.

    Args:
        layer: The layer.
        repetitions: Passes whose median counts; quick ones are repeated more often.
        device: Where the layer is.

    Raises:
        RuntimeError: There is not enough memory.
    """
    torch.backends.cudnn.allow_tf32 = False  # as matrix products: all layers in full fp32
    gradient = torch.ones_like(layer.forward())
    _run(layer, gradient, device)
    times: list[tuple[float, float]] = []
    while len(times) < repetitions or (sum(map(sum, times)) < ENOUGH_SECONDS and len(times) < MAX_REPETITIONS):
        times.append(_run(layer, gradient, device))
    forward, backward = zip(*times, strict=True)
    return Cost(median(forward), median(backward), _peak_bytes(layer, gradient, device))


def _run(layer: Layer, gradient: torch.Tensor, device: torch.device) -> tuple[float, float]:
    """Seconds of one forward and one backward pass. Gradients are new each time, as after ``zero_grad``."""
    _forget_gradients(layer)
    _wait(device)
    began = time.perf_counter()
    out = layer.forward()
    _wait(device)
    between = time.perf_counter()
    torch.autograd.backward(out, gradient)
    _wait(device)
    return between - began, time.perf_counter() - between


def _peak_bytes(layer: Layer, gradient: torch.Tensor, device: torch.device) -> int:
    """Bytes of tensors at the peak of both passes, beyond what was allocated before.

    On CUDA that is ``torch.cuda.max_memory_allocated``. On a CPU PyTorch's profiler records what its allocator hands
    out and takes back; what libraries allocate for themselves, as oneDNN for a convolution, is not in it.
    """
    _forget_gradients(layer)
    if device.type == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        torch.autograd.backward(layer.forward(), gradient)
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler prints two lines each time
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        torch.autograd.backward(layer.forward(), gradient)
    assert profile.kineto_results is not None
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return int(np.cumsum(changes).max())


def _forget_gradients(layer: Layer) -> None:
    for leaf in layer.leaves:
        leaf.grad = None


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
