"""The C++ kernels in ``kernels/``, compiled for this machine when they are first used; and the precisions."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from dstransformer.config import uses_cpu_kernels

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).with_name("kernels")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")

#: The data type of each precision.
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

#: The precisions that the kernels compute in; PyTorch computes in the others.
KERNEL_PRECISIONS = ("fp32", "bf16")

#: Elements of a vector in the kernels.
LANES = 16

_PRECISION_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_POINTER, _SIZE, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_DROPOUT = [ctypes.c_uint64, ctypes.c_uint32, _FLOAT]
_HEADS = [_POINTER, _SIZE, _POINTER, _POINTER, _SIZE]
_SENTENCES = [*[_POINTER] * 3, *[_SIZE] * 4, _INT]

#: The types of the arguments of each kernel that exists in every precision.
ARGUMENTS = {
    "residual_norm": [*[_POINTER] * 4, _SIZE, _SIZE, _FLOAT, *_DROPOUT, *[_POINTER] * 4, _INT],
    "residual_norm_backward": [*[_POINTER] * 5, _SIZE, _SIZE, *_DROPOUT, *[_POINTER] * 4, _INT],
    "bias_relu_backward": [_POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _INT],
    "cross_entropy": [_POINTER, _POINTER, _SIZE, _SIZE, _FLOAT, _POINTER, _POINTER, _INT],
    "r_drop_cross_entropy": [*[_POINTER] * 3, _SIZE, _SIZE, _FLOAT, _FLOAT, _POINTER, _POINTER, _INT],
    "best_pieces": [_POINTER, *[_SIZE] * 5, *[_POINTER] * 3, _INT],
    "attend_path": [_POINTER, _POINTER, *[_SIZE] * 5, _POINTER, _INT],
    "attention": [*_HEADS, *_SENTENCES, _POINTER, _POINTER, _INT],
    "attention_backward": [_POINTER, *_HEADS, _POINTER, *_SENTENCES, *[_POINTER] * 3, _INT],
}
#: The same by the name of the C function.
SIGNATURES = {
    **{f"{name}_{suffix}": types for name, types in ARGUMENTS.items() for suffix in KERNEL_PRECISIONS},
    "weight_gradient_fp32": [_POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _INT],
}


def kernels() -> ctypes.CDLL | None:
    """The kernels, or None if they cannot be compiled or ``DST_CPU_KERNELS=0`` is set.

    Without them PyTorch computes the same in more time, though not to the last bit, and draws other dropout masks.

    Raises:
        ConfigError: ``DST_CPU_KERNELS`` is neither 0 nor 1.
    """
    return _load() if uses_cpu_kernels(os.environ) else None


def can_compute(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors: on a CPU, all in one precision, and one that the kernels have."""
    dtype = tensors[0].dtype
    return (
        all(tensor.device.type == "cpu" and tensor.dtype == dtype for tensor in tensors)
        and precision_name(dtype) in KERNEL_PRECISIONS
        and kernels() is not None
    )


def call(kernel: str, like: Tensor, *arguments: Tensor | int | float) -> None:
    """Run a kernel in the precision of ``like``; it takes the address of each tensor, and the number of threads."""
    library = kernels()
    assert library is not None
    function = getattr(library, f"{kernel}_{precision_name(like.dtype)}")
    plain = (argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments)
    function(*plain, torch.get_num_threads())


def empty_fp32(*shape: int) -> Tensor:
    """Memory that a kernel writes fp32 to, whatever PyTorch's default type and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def precision_name(dtype: torch.dtype) -> str | None:
    """The precision of a data type; None if it is not in :data:`DTYPES`."""
    return _PRECISION_NAMES.get(dtype)


def kernels_fingerprint() -> str:
    """A hash of the kernels' source, compiler and processor; ``none`` without kernels."""
    library = kernels()
    return "none" if library is None else Path(library._name).stem.removeprefix("kernels-")


@lru_cache(maxsize=1)
def is_faster_than_mkl() -> bool:
    """Whether the kernel for gradients of weights is faster than the product of MKL, which PyTorch calls.

    Measurements: faster on AMD processors with AVX-512 and two threads; much slower without AVX-512.
    """
    makers, flags = _cpuinfo("vendor_id"), _cpuinfo("flags")
    return any("AuthenticAMD" in line for line in makers) and any("avx512f" in line.split() for line in flags)


@lru_cache(maxsize=1)
def _load() -> ctypes.CDLL | None:
    compilers = _compilers()
    if not compilers:
        logger.warning("found no C++ compiler (g++): without compiled kernels the CPU is slower; install g++")
        return None
    reasons = []
    for compiler in compilers:
        try:
            library = _open(compiler)
            for name, types in SIGNATURES.items():
                function = getattr(library, name)
                function.argtypes, function.restype = types, None
            return library
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stderr", None) or str(error)
            reasons.append(f"{shlex.join(compiler)}: {' '.join(output.split())[:300]}")
    logger.warning("cannot compile the CPU kernels, so the CPU is slower: %s", "; ".join(reasons))
    return None


def _compilers() -> list[list[str]]:
    """Commands to try: ``CXX``, then g++, because other compilers may lack GCC's vector extensions."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        logger.warning("CXX is %r, which is not a command (%s): using g++", os.environ["CXX"], error)
        named = []
    commands = [named, ["g++"]] if named not in ([], ["g++"]) else [["g++"]]
    return [command for command in commands if shutil.which(command[0])]


def _open(compiler: Sequence[str]) -> ctypes.CDLL:
    library = _build(compiler)
    try:
        return ctypes.CDLL(str(library))
    except OSError:  # damaged, for example by a power failure
        return ctypes.CDLL(str(_build(compiler, again=True)))


def _build(compiler: Sequence[str], *, again: bool = False) -> Path:
    """The shared library: built once for this source, compiler and processor, and kept in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dstransformer")
    library = cache / f"kernels-{_fingerprint(compiler)}.so"
    if again or not library.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeError(
                f"cannot make the folder {cache} ({error.strerror}): name one with XDG_CACHE_HOME"
            ) from None
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder, library.name)
            subprocess.run(
                [*compiler, *FLAGS, "-o", str(fresh), str(SOURCES / "kernels.cpp")],
                check=True,
                capture_output=True,
                text=True,
            )
            fresh.replace(library)  # atomic: another process may build it too
    return library


def _fingerprint(compiler: Sequence[str]) -> str:
    version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout
    sources = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())]
    # Nodes that share a home folder may have different processors.
    parts = [*sources, *compiler, *FLAGS, version, processor_name(), *_cpuinfo("flags", "Features")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def processor_name() -> str:
    """The human-readable name of this machine's CPU."""
    names = [line.partition(":")[2].strip() for line in _cpuinfo("model name")]
    return ", ".join(names) or platform.processor() or platform.machine()


def processor_flags() -> frozenset[str]:
    """The instruction sets of this machine's CPU by Linux's names, such as ``avx512_bf16``; empty where unknown."""
    return frozenset(flag for line in _cpuinfo("flags", "Features") for flag in line.partition(":")[2].split())


def _cpuinfo(*names: str) -> list[str]:
    """The different lines of ``/proc/cpuinfo`` that start with one of these names."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted({line for line in lines if line.startswith(names)})
