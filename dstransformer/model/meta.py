"""Models without values: their names, shapes and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dstransformer.config import ModelConfig
from dstransformer.model.transformer import Transformer


@contextmanager
def meta_device() -> Iterator[None]:
    """Models built in this context have parameters with names and shapes, but without values and memory."""
    with torch.device("meta"), _SkipInitialisation():
        yield


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation.

    On the meta device it has no effect, but PyTorch imports its compiler to find that out, which takes seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function unless it draws initial values."""
        given = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return given["tensor"]
        return args[0] if func in (Tensor.uniform_, Tensor.normal_) else func(*args, **given)


@cache
def parameter_count(config: ModelConfig, vocab_size: int, src_vocab_size: int | None = None) -> int:
    """Number of weights of a model, counted without building them; for the sizes see :class:`Transformer`."""
    with meta_device():
        model = Transformer(config, vocab_size, src_vocab_size=src_vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())
