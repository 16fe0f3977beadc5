"""Measured limits of a device, and the operations that training and decoding require."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dstransformer.config import ModelConfig
from dstransformer.data.plan import LengthSums
from dstransformer.model import DTYPES, ops, training_flops

#: Side of the matrices whose product measures a CPU, and count of the numbers whose copy does.
CPU_PRODUCT = 2048
CPU_COPY = 1 << 26

_CPU = torch.device("cpu")
_ROUNDS = 5
_REPEATS = 10
_BLOCK = 8 << 20
_BLOCKS = 64


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Limits:
    """FLOP/s of a square matrix product, and bytes per second, read plus written, of a copy in device memory."""

    flops: float
    bandwidth: float


def measure_limits(precision: str, size: int, device: torch.device) -> Limits:
    """Measure the product of random matrices of side ``size``, and the copy of ``2 * size**2`` numbers."""
    limits = Limits(measure_product(precision, size, device), measure_copy(2 * size * size, device))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return limits


def measure_product(precision: str, size: int, device: torch.device) -> float:
    """FLOP/s of the product of two square matrices, with the fastest available library."""
    left, right = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
    out = torch.empty_like(left)
    best = best_seconds(lambda: torch.mm(left, right, out=out), device)
    if device.type == "cpu":  # the model may use another library than PyTorch's choice
        product = ops.prepare_linear(right, repeated=False)
        best = min(best, best_seconds(lambda: product(left), device))
    return 2 * size**3 / best


def measure_copy(numbers: int, device: torch.device) -> float:
    """Bytes per second, read plus written, of a copy of this many fp32 numbers in device memory."""
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / best_seconds(lambda: target.copy_(source), device)


def best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds per call in the fastest of a few rounds of several calls."""
    rounds = []
    for number in range(_ROUNDS + 1):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(_REPEATS):
            work()
        synchronize(device)
        if number:  # the first round warms up
            rounds.append((time.perf_counter() - began) / _REPEATS)
    return min(rounds)


def cpu_flops(precision: str) -> float:
    """FLOP/s of a matrix product on all cores."""
    return measure_product(precision, CPU_PRODUCT, _CPU)


def cpu_bandwidth() -> float:
    """Bytes per second, read plus written, of a copy in memory, on all cores."""
    return measure_copy(CPU_COPY, _CPU)


def disk_bandwidth(folder: Path) -> float:
    """Bytes per second of writing a file of 512 MB, fsync included."""
    path, block = folder / "disk-bandwidth", os.urandom(_BLOCK)
    began = time.perf_counter()
    try:
        with path.open("wb") as file:
            for _ in range(_BLOCKS):
                file.write(block)
            os.fsync(file.fileno())
        return _BLOCKS * _BLOCK / (time.perf_counter() - began)
    finally:
        path.unlink(missing_ok=True)


def folder_bytes(folder: Path) -> int:
    """Total size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def flops_per_token(model: ModelConfig, vocabulary: int, src_lengths: np.ndarray, tgt_lengths: np.ndarray) -> float:
    """Floating-point operations of forward and backward per token, source or target, on average over a text.

    :func:`dstransformer.model.training_flops` says what is counted.
    """
    sums = LengthSums.of(src_lengths, tgt_lengths)
    return training_flops(model, vocabulary, sums) / (sums.src_tokens + sums.tgt_tokens)


def decoding_flops(model: ModelConfig, vocabulary: int, src_tokens: int, tgt_tokens: int, beam_size: int) -> float:
    """Operations of a beam search that computes each output token once per hypothesis.

    Two for each weight applied to a token: forward only, without the attention products.

    Args:
        model: Its heads together are ``d_model`` wide.
        vocabulary: Rows of the softmax matrix.
        src_tokens: Source tokens of all sentences, end-of-sentence tokens included.
        tgt_tokens: Target tokens of all translations, end-of-sentence tokens included.
        beam_size: Hypotheses per sentence.
    """
    # A source token also passes the key and value projections of the attention over the memory, a target token the
    # other two.
    projection = model.d_model**2
    layer, of_memory = 4 * projection + 2 * model.d_ff * model.d_model, 2 * projection
    src_weights = model.encoder_depth * layer + model.decoder_depth * of_memory
    tgt_weights = model.decoder_depth * (layer + of_memory)
    return 2.0 * (src_weights * src_tokens + beam_size * (tgt_weights + vocabulary * model.d_model) * tgt_tokens)
