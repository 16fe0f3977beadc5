"""The device that decodes, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from dstransformer.errors import ConfigError, DstError, shown


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on a device; what PyTorch keeps of a GPU for new tensors is free too."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Keep attention on a GPU from cuDNN, which PyTorch 2.13 prefers on Hopper and Blackwell.

    It builds a plan for every new number of keys, and each step of a search has another: tens of milliseconds each,
    as others report.
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


@contextmanager
def memory_errors(action: str = "translate", advice: str = "lower --batch-tokens or --beam") -> Iterator[None]:
    """Report a failed allocation in one line.

    Args:
        action: What there is not enough memory for.
        advice: What to do.

    Raises:
        DstError: Memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate" not in str(error):
            raise
        raise DstError(f"not enough memory to {action}: {advice}") from error


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device to decode on: None chooses CUDA if it is available, else the CPU.

    Raises:
        ConfigError: The name is not a device, or PyTorch cannot compute on the device.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or (chosen.type == "cpu" and chosen.index):
        raise ConfigError(
            f"cannot use the device {shown(str(device))}: no device has this name; give cpu, cuda or cuda:N, or leave "
            "it out to choose automatically"
        )
    try:
        torch.zeros(1, device=chosen).item()  # "meta" has tensors, but no values
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        unsupported = isinstance(error, NotImplementedError) or str(device) == "meta"
        reason = "this PyTorch cannot compute on it" if unsupported else str(error).split("\n", 1)[0]
        raise ConfigError(
            f"cannot use the device {shown(str(device))}: {shown(reason, quote=False, limit=120)}; leave it out to "
            "choose automatically"
        ) from None
    return chosen
