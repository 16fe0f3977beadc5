"""The C++ kernels beside this file, compiled for this machine when they are first used."""

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

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).with_name("kernels")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")

#: The precisions that the kernels compute in; others are left to PyTorch.
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}

_POINTER, _SIZE, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_DROPOUT = [ctypes.c_uint64, ctypes.c_uint32, _FLOAT]
_HEADS = [_POINTER, _SIZE, _POINTER, _POINTER, _SIZE]
_SENTENCES = [*[_POINTER] * 3, *[_SIZE] * 4, _INT]

#: The types of the arguments of each kernel that there is in every precision.
ARGUMENTS = {
    "residual_norm": [*[_POINTER] * 4, _SIZE, _SIZE, _FLOAT, *_DROPOUT, *[_POINTER] * 4, _INT],
    "residual_norm_backward": [*[_POINTER] * 5, _SIZE, _SIZE, *_DROPOUT, *[_POINTER] * 4, _INT],
    "bias_relu_backward": [_POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _INT],
    "cross_entropy": [_POINTER, _POINTER, _SIZE, _SIZE, _FLOAT, _POINTER, _POINTER, _INT],
    "best_pieces": [_POINTER, *[_SIZE] * 5, *[_POINTER] * 3, _INT],
    "attend_path": [_POINTER, _POINTER, *[_SIZE] * 5, _POINTER, _INT],
    "attention": [*_HEADS, *_SENTENCES, _POINTER, _POINTER, _INT],
    "attention_backward": [_POINTER, *_HEADS, _POINTER, *_SENTENCES, *[_POINTER] * 3, _INT],
}
#: Those of each kernel by its whole name.
SIGNATURES = {
    **{f"{name}_{suffix}": types for name, types in ARGUMENTS.items() for suffix in NAMES.values()},
    "weight_gradient_fp32": [_POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _INT],
}


def kernels() -> ctypes.CDLL | None:
    """The kernels, or None where they cannot be compiled.

    PyTorch computes the same then in more time, though not to the last bit, and it draws other dropout masks.

    The variable ``DST_CPU_KERNELS=0`` does without them.
    """
    return None if os.environ.get("DST_CPU_KERNELS") == "0" else _load()


def kernels_name() -> str:
    """What tells these kernels from others: a hash of source, compiler and processor; ``none`` without kernels."""
    library = kernels()
    return "none" if library is None else Path(library._name).stem.removeprefix("kernels-")


@lru_cache(maxsize=1)
def outruns_mkl() -> bool:
    """Whether the kernel for gradients of weights is faster than MKL's product, which PyTorch calls.

    It was measured to be on AMD's with AVX-512 and two threads; without AVX-512 it is much slower.
    """
    makers, flags = _information("vendor_id"), _information("flags")
    return any("AuthenticAMD" in line for line in makers) and any("avx512f" in line.split() for line in flags)


@lru_cache(maxsize=1)
def _load() -> ctypes.CDLL | None:
    compilers = _compilers()
    if not compilers:
        logger.warning("no C++ compiler (g++): training on the CPU is slower without compiled kernels")
        return None
    reasons = []
    for compiler in compilers:
        try:
            return _declare(_open(compiler))
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stderr", None) or str(error)
            reasons.append(f"{shlex.join(compiler)}: {' '.join(output.split())[:300]}")
    logger.warning("the CPU kernels cannot be compiled, training is slower: %s", "; ".join(reasons))
    return None


def _compilers() -> list[list[str]]:
    """Commands to try: ``CXX``, then g++, since another compiler may lack GCC's vectors."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        logger.warning("CXX is %r, which is no command (%s); taking g++", os.environ["CXX"], error)
        named = []
    commands = [named, ["g++"]] if named not in ([], ["g++"]) else [["g++"]]
    return [command for command in commands if shutil.which(command[0])]


def _open(compiler: Sequence[str]) -> ctypes.CDLL:
    library = _compiled(compiler)
    try:
        return ctypes.CDLL(str(library))
    except OSError:  # damaged, by a power cut say
        return ctypes.CDLL(str(_compiled(compiler, again=True)))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, types in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return library


def _compiled(compiler: Sequence[str], *, again: bool = False) -> Path:
    """The shared library: made once for this source, compiler and processor, and kept in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dstransformer")
    library = cache / f"kernels-{_fingerprint(compiler)}.so"
    if again or not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder, library.name)
            subprocess.run(
                [*compiler, *FLAGS, "-o", str(fresh), str(SOURCES / "kernels.cpp")],
                check=True,
                capture_output=True,
                text=True,
            )
            fresh.replace(library)  # whole, whoever else makes it
    return library


def _fingerprint(compiler: Sequence[str]) -> str:
    version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout
    sources = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())]
    return hashlib.sha256("\n".join([*sources, *compiler, *FLAGS, version, _processor()]).encode()).hexdigest()[:16]


def _processor() -> str:
    """What the compiled code depends on: nodes that share a home folder may have different processors."""
    return "\n".join([processor_name(), *_information("flags", "Features")])


def processor_name() -> str:
    """Of this machine's CPU, for people."""
    names = [line.partition(":")[2].strip() for line in _information("model name")]
    return ", ".join(names) or platform.processor() or platform.machine()


def _information(*names: str) -> list[str]:
    """The different lines of the kernel's description of the CPUs that begin so."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted({line for line in lines if line.startswith(names)})
