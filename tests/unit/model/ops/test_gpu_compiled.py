"""The Triton kernels, compiled for an A100 and an H100 without either: registers, spills, and the width of loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

from support.models.gpu_compiler import Compiled, compiling_for

from dstransformer.model.ops import HeadShape, gpu_attention, gpu_best, gpu_loss, gpu_norm

CAPABILITIES = [80, 90]

#: Registers of a multiprocessor, the same for both.
REGISTERS = 1 << 16

#: Warps that a multiprocessor has to hold at least, of 64, because fewer cannot hide the time that memory takes to
#: answer; and bytes that a thread may spill. In fp32, which is not for speed, the assembler spills a few.
BOUNDS = {torch.bfloat16: (16, 0), torch.float16: (16, 0), torch.float32: (12, 16)}

#: The same for attention with heads wider than 64, or in fp32.
WIDE_HEADS = (8, 16)


def launch_losses(dtype: torch.dtype, pieces: int, scale: float | None) -> None:
    logits = torch.empty(3000, pieces, dtype=dtype, device="meta")
    targets = torch.empty(3000, dtype=torch.int64, device="meta")
    gpu_loss.launch_cross_entropy(logits, targets, 0.1, scale)
    gpu_loss.launch_r_drop(logits, logits, targets, 0.1, 5.0, scale)


def launch_norms(dtype: torch.dtype, weight_dtype: torch.dtype, width: int, p: float) -> None:
    x = torch.empty(25_000, width, dtype=dtype, device="meta")
    gain = torch.empty(width, dtype=weight_dtype, device="meta")
    seed = torch.empty((), dtype=torch.int64, device="meta") if p else None
    _, summed, statistics = gpu_norm.launch_residual_norm(x, x, gain, gain, seed, 1e-6, p)
    gpu_norm.launch_residual_norm_backward(x, summed, gain, statistics, seed, p)


def launch_best_pieces(dtype: torch.dtype, pieces: int, count: int) -> None:
    gpu_best.launch_best_pieces(torch.empty(3000, pieces, dtype=dtype, device="meta"), 2, pieces, count)


def launch_attentions(dtype: torch.dtype, width: int) -> None:
    """In the encoder, in the decoder, and over the memory."""
    cu = torch.empty(900, dtype=torch.int32, device="meta")
    for causal, over_memory in ((False, False), (True, False), (False, True)):
        queries = torch.empty(25_000, (1 if over_memory else 3) * 8 * width, dtype=dtype, device="meta")
        memory = torch.empty(24_000, 2 * 8 * width, dtype=dtype, device="meta") if over_memory else None
        numbers = (25_000, 24_000, *HeadShape(8, width, width, causal))
        key_cu = cu if over_memory else None
        out, log_sums = gpu_attention.launch_attention(queries, memory, cu, key_cu, *numbers)
        gpu_attention.launch_attention_backward(out, queries, memory, out, log_sums, cu, key_cu, *numbers)


def assert_fits(kernels: list[Compiled], dtype: torch.dtype, bounds: tuple[int, int] | None = None) -> None:
    """Registers suffice, and a multiprocessor holds enough programs."""
    warps, spilled = bounds or BOUNDS[dtype]
    for kernel in kernels:
        assert kernel.spilled <= spilled, kernel
        programs = REGISTERS // (-(-kernel.registers // 8) * 8 * 32 * kernel.warps)
        assert programs * kernel.warps >= warps, kernel


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_of_base_fit_the_device(capability: int, tmp_path: Path) -> None:
    with compiling_for(capability, tmp_path) as kernels:
        launch_losses(torch.bfloat16, 37_000, 1.0)
        launch_norms(torch.bfloat16, torch.float32, 512, 0.1)
    assert len(kernels) == 4
    assert_fits(kernels, torch.bfloat16)
    for kernel in kernels:
        assert re.search(r"ld\.global\.v[24]\.b32", kernel.ptx), "a thread reads four or eight numbers at once"
        assert "cvt.rn.bf16" in kernel.ptx, "results are rounded, not cut off"


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_best_pieces_of_base_fit_the_device(capability: int, dtype: torch.dtype, tmp_path: Path) -> None:
    with compiling_for(capability, tmp_path) as kernels:
        launch_best_pieces(dtype, 37_000, 8)
        launch_best_pieces(dtype, 36_999, 1)
        launch_best_pieces(dtype, 37_000, 64)
    assert_fits(kernels, dtype)
    assert re.search(r"ld\.global\.v[24]\.b32", kernels[0].ptx), "a thread reads four or eight numbers at once"


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_attention_of_base_fits_the_device(capability: int, tmp_path: Path) -> None:
    with compiling_for(capability, tmp_path) as kernels:
        launch_attentions(torch.bfloat16, 64)
    assert len(kernels) == 6
    assert_fits(kernels, torch.bfloat16)
    for kernel in kernels:
        assert "mma.sync" in kernel.ptx
        assert "ld.global.v4.b32" in kernel.ptx, "a thread reads eight numbers at once"
        assert "st.global.v4.b32" in kernel.ptx


@pytest.mark.extended
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float16, 64), (torch.bfloat16, 40), (torch.bfloat16, 128), (torch.float32, 64)], ids=str
)
def test_attention_fits_the_device(capability: int, dtype: torch.dtype, width: int, tmp_path: Path) -> None:
    with compiling_for(capability, tmp_path) as kernels:
        launch_attentions(dtype, width)
    assert_fits(kernels, dtype, WIDE_HEADS if width > 64 or dtype == torch.float32 else None)


@pytest.mark.extended
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_kernels_fit_the_device(capability: int, dtype: torch.dtype, tmp_path: Path) -> None:
    with compiling_for(capability, tmp_path) as kernels:
        launch_losses(dtype, 40_960, None)
        launch_losses(dtype, 36_999, 1.0)
        for width in (1024, 100, 8192):
            for weight_dtype in {dtype, torch.float32}:
                for p in (0.0, 0.1):
                    launch_norms(dtype, weight_dtype, width, p)
    assert_fits(kernels, dtype)
