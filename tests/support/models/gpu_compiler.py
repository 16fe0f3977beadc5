"""Compiles Triton kernels for a GPU that is not there, and reads what they need of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Compiled(NamedTuple):
    """A kernel for one GPU: registers of a thread, warps of a program, bytes that a thread spills, and its code."""

    name: str
    registers: int
    warps: int
    spilled: int
    ptx: str


class _Driver:
    """A driver of Triton with one device, which only says what it is."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps the kernels of each device apart

    def get_current_stream(self, _device: int) -> int:
        return 0


@contextmanager
def compiling_for(capability: int, cache: Path) -> Iterator[list[Compiled]]:
    """Compile each kernel that is launched, with the arguments of the launch, and do not run it.

    Args:
        capability: 80 for an A100, 90 for an H100.
        cache: Triton's cache.

    Yields:
        The kernels, in the order of the launches.
    """
    compiled: list[Compiled] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        found = run(kernel, *arguments, grid=grid, warmup=True, **options)
        compiled.append(_describe(found, cache))
        return found

    with (
        patch.object(driver, "_active", _Driver(capability)),
        patch.object(JITFunction, "run", compile_only),
        patch.dict("os.environ", TRITON_CACHE_DIR=str(cache)),
    ):
        yield compiled


def _describe(kernel: Any, folder: Path) -> Compiled:
    binary = folder / "kernel.cubin"
    binary.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", binary], check=True, capture_output=True, text=True).stdout
    needs = {name: int(count) for name, count in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    spilled = needs["STACK"] + needs["LOCAL"]
    return Compiled(kernel.metadata.name, needs["REG"], kernel.metadata.num_warps, spilled, kernel.asm["ptx"])
