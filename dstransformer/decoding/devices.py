"""The device that decodes, and its memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psutil
import torch

from dstransformer.distributed.hardware import warn_of_driver_problem
from dstransformer.errors import ConfigError, DstError, shown
from dstransformer.io.progress import Advance

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


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
        if not is_memory_error(error):
            raise
        raise DstError(f"not enough memory to {action}: {advice}") from error


def decode_batches(
    decode: Callable[[Sequence[int]], Sequence[_Result]], batches: Iterable[Sequence[int]], progress: Advance | None
) -> Iterator[tuple[int, _Result]]:
    """Decode batches of sentences.

    Args:
        decode: Decodes a batch, given the indices of its sentences. Its results depend on no other sentence.
        batches: The indices of each batch. One that does not fit in memory is decoded in halves.
        progress: Called after each batch with the number of its sentences.

    Yields:
        The index of a sentence and its result.

    Raises:
        RuntimeError: Memory runs out for a single sentence, or another failure.
        MemoryError: Likewise.
    """
    for batch in batches:
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            results = None
            try:
                results = decode(part)
            except (RuntimeError, MemoryError) as error:
                if len(part) == 1 or not is_memory_error(error):
                    raise
            if results is not None:
                yield from zip(part, results, strict=True)
                if progress is not None:
                    progress(len(part))
                continue
            # The error is gone here, and with it the tensors that its frames held.
            logger.warning("a batch of %d sentences did not fit in memory: it is decoded in halves", len(part))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]


def is_memory_error(error: Exception) -> bool:
    """Whether PyTorch, oneDNN or Python could not allocate memory; on a CPU PyTorch raises a plain ``RuntimeError``."""
    text = str(error).lower()
    signs = (
        "allocate memory",
        "cannot allocate",
        "failed to allocate",
        "tried to allocate",
        "bad_alloc",
        "out of memory",
        "could not create a primitive",  # oneDNN, which says no more
    )
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in text for sign in signs)


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device to decode on: None chooses CUDA if it is available, else the CPU, with a warning if there is a GPU.

    Raises:
        ConfigError: The name is not a device, or PyTorch cannot compute on the device.
    """
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        warn_of_driver_problem("decodes")
        return torch.device("cpu")
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
