"""Whether the Triton kernels of a GPU can run, and how PyTorch comes to know them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from dstransformer.config import uses_gpu_kernels
from dstransformer.model.ops.library import DTYPES

logger = logging.getLogger(__name__)

#: The compute capability from which the kernels are used: they load and store bf16.
MIN_CAPABILITY = (8, 0)

#: The widest row whose norm a program computes in registers.
MAX_WIDTH = 8192

#: The smallest tensor whose norm a kernel computes. The host takes about twice as long to launch it as to launch
#: PyTorch's operators, and below about 8,000 tokens of ``base`` that is more than the device saves (an estimate).
MIN_ELEMENTS = 1 << 22

#: The fewest logits whose best a kernel chooses, for which PyTorch's operators keep the device as long as the host (an
#: estimate); and how many it chooses at most. More take many steps one after the other.
MIN_LOGITS, MAX_BEST = 1 << 22, 64

#: The longest sentence, in tokens, and the widest head whose attention a program computes, block by block. A longer
#: sentence would keep its program busy when all others have ended.
MAX_LENGTH, MAX_HEAD = 256, 128

#: The namespace of the operators, ``torch.ops.dstransformer``.
NAMESPACE = "dstransformer"

_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def can_compute(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors: on one CUDA device that can run them, all in one precision.

    Raises:
        ConfigError: ``DST_GPU_KERNELS`` is neither 0 nor 1.
    """
    first = tensors[0]
    return (
        first.is_cuda
        and first.dtype in DTYPES.values()
        and all(tensor.dtype == first.dtype for tensor in tensors)
        and _can_run_on(first.device)
    )


def can_norm(x: Tensor, y: Tensor, p: float) -> bool:
    """Whether a kernel computes the norm of this residual sum with the dropout probability ``p``, and pays.

    It does not in decoding. But with dropout the choice must not depend on whether there is a gradient: where
    activations are computed again for the gradient, the mask has to be the same.
    """
    return (
        x.is_cuda
        and (p > 0.0 or torch.is_grad_enabled())
        and x.numel() >= MIN_ELEMENTS
        and x.shape[-1] <= MAX_WIDTH
        and can_compute(x, y)
    )


def can_choose(logits: Tensor, count: int) -> bool:
    """Whether a kernel chooses the ``count`` best of each row of logits, and pays."""
    return logits.is_cuda and logits.numel() >= MIN_LOGITS and count <= MAX_BEST and can_compute(logits)


def can_attend(queries: Tensor, length: int, width: int, p: float) -> bool:
    """Whether a kernel computes attention in sentences up to ``length`` with heads up to ``width``; without dropout."""
    return p == 0.0 and length <= MAX_LENGTH and width <= MAX_HEAD and can_compute(queries)


def gpu_kernels_name(device: torch.device) -> str:
    """The version of Triton that compiles the kernels for a CUDA device; ``none`` without kernels."""
    if not _can_run_on(device):
        return "none"
    import triton

    return f"triton {triton.__version__}"


def _can_run_on(device: torch.device) -> bool:
    return uses_gpu_kernels(os.environ) and _supports(device)


# As torch.compiler.assume_constant_result does, which imports the compiler: that takes seconds.
_can_run_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache
def _supports(device: torch.device) -> bool:
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return False
    try:
        import triton  # noqa: F401
    except ImportError as error:
        logger.warning("cannot import triton (%s), so the GPU is slower: install the package triton", error)
        return False
    return True


def register(schema: str, launch: Callable[..., Any], shape: Callable[..., Any]) -> None:
    """Make a function that launches kernels an operator of PyTorch.

    ``torch.compile`` and fake tensors then see one operator and never look inside.

    Args:
        schema: Name, arguments and results, as ``torch.library`` takes them.
        launch: Launches the kernels. On tensors of a CPU it is Triton's interpreter that runs them, in tests.
        shape: Makes the results without values.
    """
    name = _library.define(schema)
    _library.impl(name, launch, "CPU")
    _library.impl(name, _on_its_device(launch), "CUDA")
    _library.impl(name, shape, "Meta")


def _on_its_device(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the current device, whatever device the tensors are on."""

    @wraps(launch)
    def run(first: Tensor, *others: Any) -> Any:
        with torch.cuda.device(first.device):
            return launch(first, *others)

    return run
