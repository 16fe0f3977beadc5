"""The Triton kernels, compiled for an A100 and an H100 without either: registers, spills, and the width of loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

from support.models.gpu_compiler import Compiled, compiling_for

from dstransformer.model.ops import gpu_loss, gpu_norm

CAPABILITIES = [80, 90]

#: Registers of a multiprocessor, the same for both.
REGISTERS = 1 << 16

#: Warps that a multiprocessor has to hold at least, of 64, because fewer cannot hide the time that memory takes to
#: answer; and bytes that a thread may spill. In fp32, which is not for speed, the assembler spills a few.
BOUNDS = {torch.bfloat16: (16, 0), torch.float16: (16, 0), torch.float32: (12, 16)}


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


def assert_fits(kernels: list[Compiled], dtype: torch.dtype) -> None:
    """Registers suffice, and a multiprocessor holds enough programs."""
    warps, spilled = BOUNDS[dtype]
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
