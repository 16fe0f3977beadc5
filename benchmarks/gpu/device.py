"""The device, and the most it can do: by its data sheet, and as measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

#: Dense bf16 and fp16 matrix products in FLOP/s with fp32 accumulation, from NVIDIA's data sheets, which often state
#: twice as much, for sparse matrices. The first name that is part of the device's name counts.
DENSE_PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
}

_ROUNDS = 5
_REPEATS = 10


def datasheet_peak(name: str) -> float | None:
    """FLOP/s of dense bf16 products of the card with this name; None where it is not known."""
    return next((peak for part, peak in DENSE_PEAKS.items() if part in name), None)


def describe(device: torch.device) -> str:
    """Name and memory of the device, and the versions that drive it."""
    if device.type != "cuda":
        return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
    properties = torch.cuda.get_device_properties(device)
    memory = properties.total_memory / 2**30
    return f"{properties.name}, {memory:.0f} GiB, torch {torch.__version__}, CUDA {torch.version.cuda}"


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Limits:
    """FLOP/s of a square matrix product, and bytes a second, read and written, of a copy within the memory."""

    flops: float
    bandwidth: float


def measure_limits(precision: str, size: int, device: torch.device) -> Limits:
    """Measure on random numbers: the product of matrices of side ``size``, and the copy of twice as many numbers."""
    limits = Limits(_measure_product(precision, size, device), _measure_copy(2 * size * size, device))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return limits


def _measure_product(precision: str, size: int, device: torch.device) -> float:
    left, right = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * size**3 / _best_seconds(lambda: torch.mm(left, right, out=out), device)


def _measure_copy(numbers: int, device: torch.device) -> float:
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / _best_seconds(lambda: target.copy_(source), device)


def _best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the fastest of a few rounds of several calls."""
    rounds = []
    for number in range(_ROUNDS + 1):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(_REPEATS):
            work()
        synchronize(device)
        if number:  # the first warms up
            rounds.append((time.perf_counter() - began) / _REPEATS)
    return min(rounds)
