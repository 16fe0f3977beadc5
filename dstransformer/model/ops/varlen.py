"""Flash attention over packed sentences on a CUDA device: the backend ``varlen``; and whether a backend can run."""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dstransformer.config import ModelConfig
from dstransformer.data.packing import Packing
from dstransformer.errors import ConfigError
from dstransformer.model.ops.reference import HeadShape, split_projections

logger = logging.getLogger(__name__)

Backend = Literal["auto", "varlen", "padded"]

#: Maximum width of a head that flash attention computes.
MAX_WIDTH = 256

#: The positional arguments of PyTorch's flash attention, from 2.11 to 2.13.
OPERATOR_ARGUMENTS = (
    "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask",
)  # fmt: skip


def check_backend(config: ModelConfig, backend: Backend, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse an attention backend that cannot run a model.

    Args:
        config: The architecture.
        backend: The backend of its attention.
        device: The device that computes it.
        dtype: The precision of the computation.

    Raises:
        ConfigError: ``varlen`` cannot run this model on this device in this precision.
    """
    if backend != "varlen":
        return
    needs = [
        need
        for met, need in (
            (_is_available(device, dtype), "a GPU of compute capability 8.0 or more in bf16 or fp16"),
            (config.attention_dropout == 0.0, "model.attention_dropout=0.0"),
            (max(config.d_k, config.d_v) <= MAX_WIDTH, f"model.d_k and d_v of at most {MAX_WIDTH}"),
        )
        if not met
    ]
    if needs:
        raise ConfigError(
            f"training.attention_backend = {backend} needs {' and '.join(needs)}: set it to auto, which chooses the "
            "fastest backend that can run"
        )


def can_compute(queries: Tensor, shape: HeadShape, dropout: float) -> bool:
    """Whether flash attention computes these heads; it has no dropout here."""
    return dropout == 0.0 and max(shape.d_k, shape.d_v) <= MAX_WIDTH and _is_available(queries.device, queries.dtype)


@lru_cache
def _is_available(device: torch.device, dtype: torch.dtype) -> bool:
    half = dtype in (torch.float16, torch.bfloat16)
    return device.type == "cuda" and half and torch.cuda.get_device_capability(device) >= (8, 0)


def attention(
    queries: Tensor, keys_values: Tensor | None, packing: Packing, key_packing: Packing, shape: HeadShape
) -> Tensor:
    """Attention within each sentence without padding; see :func:`dstransformer.model.ops.attention`.

    Flash attention has one width for all heads, a multiple of 8: the narrower ones are filled up with zeros.
    """
    width = -(-max(shape.d_k, shape.d_v) // 8) * 8
    q, k, v = (
        F.pad(part, (0, width - part.shape[-1])) if part.shape[-1] < width else part
        for part in split_projections(queries, keys_values, shape)
    )
    attend = _attend if HAS_OPERATOR else _attend_public
    out = attend(q, k, v, packing, key_packing, shape)
    return out[..., : shape.d_v].flatten(1)


def _attend(q: Tensor, k: Tensor, v: Tensor, packing: Packing, key_packing: Packing, shape: HeadShape) -> Tensor:
    """Call the operator under PyTorch's ``varlen_attn``, whose gradient is C++: about half the time of the host."""
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, packing.cu, key_packing.cu, packing.max_len, key_packing.max_len, 0.0, shape.causal, False,
        scale=shape.d_k**-0.5, window_size_left=-1, window_size_right=0 if shape.causal else -1,
    )[0]  # fmt: skip
    return out


def _attend_public(q: Tensor, k: Tensor, v: Tensor, packing: Packing, key_packing: Packing, shape: HeadShape) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    _warn_of_public_function()
    out = varlen_attn(
        q, k, v, packing.cu, key_packing.cu, packing.max_len, key_packing.max_len,
        scale=shape.d_k**-0.5, window_size=(-1, 0) if shape.causal else (-1, -1),
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


@cache
def _warn_of_public_function() -> None:
    logger.warning(
        "PyTorch %s lacks the flash attention of 2.11 to 2.13: its varlen_attn computes, which takes more time of "
        "the host, and on Hopper several times as long on the GPU",
        torch.__version__,
    )


def _has_operator() -> bool:
    """Whether the operator takes the arguments of :func:`_attend`: it is not part of PyTorch's public interface."""
    operator = getattr(torch.ops.aten, "_flash_attention_forward", None)
    if operator is None:
        return False
    arguments = operator.default._schema.arguments
    by_place = tuple(argument.name for argument in arguments if not argument.kwarg_only)
    by_name = {argument.name for argument in arguments if argument.kwarg_only}
    return by_place == OPERATOR_ARGUMENTS and by_name >= {"scale", "window_size_left", "window_size_right"}


HAS_OPERATOR = _has_operator()
